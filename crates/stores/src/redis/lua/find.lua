-- Finds the operation's own record among those whose digests begin with the same eight bytes.

local from = 83
if #name == 16 then
  from = 67
end
while record and string.find(record, name, from, true) ~= from do
  -- The record of a later operation with the same prefix is in the next field of the chain. A damaged record
  -- must not be taken for that of another operation, because this one would then seem absent: the checksum
  -- (CRC-32) decides. '-' stands for a removed record in the middle of the chain.
  if #name == 32 and record ~= '-' then
    local crc = -1
    for place = 66, #record - 4 do
      crc = bit.bxor(crc, string.byte(record, place))
      for _ = 1, 8 do
        crc = bit.bxor(bit.rshift(crc, 1), bit.band(0xEDB88320, -bit.band(crc, 1)))
      end
    end
    if #record < 118 or bit.bnot(crc) ~= bit.tobit(struct.unpack('>I4', record, #record - 3)) then
      return redis.error_reply('DAMAGED the record of an operation is damaged')
    end
  end
  field = field .. '+'
  record = redis.call('HGET', KEYS[1], field)
end

-- A stamp is the fence of a grant, so it must rise even if the clock goes back.
if record then
  stamp = math.max(stamp, struct.unpack('>I8', record, 4) + 1)
end
