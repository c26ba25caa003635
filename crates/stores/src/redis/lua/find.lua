-- Makes sure that the record is that of the operation.

local from = 83
if #name == 16 then
  from = 67
end
while record and string.find(record, name, from, true) ~= from do
  -- Two digests may begin alike: the later one lies one field further on. But what is damaged must never
  -- pass for another's, else the operation would pass for absent: the checksum (CRC-32) decides. '-' was
  -- left by one that went before the other.
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

-- A stamp is the fence of a grant, and rises although the clock may go back.
if record then
  stamp = math.max(stamp, struct.unpack('>I8', record, 4) + 1)
end
