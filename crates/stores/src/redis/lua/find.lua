-- Where the record of one operation lies: follows `clock.lua` in every script on one operation.
--
-- KEYS 1  operations, a hash: records (field), their replies (field:r) and requests (field:q), and the floor
--      2  index, a sorted set: fields by the stamp of their last change, in microseconds; and far below them,
--         field:e by what time does to a record next (`Band` in layout.rs): 2^44 times the band, and the moment
--      3  queue, a sorted set: fields by when they are due
-- ARGV 2  the operation's digest, or its id; both begin with the same eight bytes
--
-- A record is `layout.rs` in bytes, counted from 1:
--      1  '1' where somebody waits          28  word   \
--      2  version                           29  at      | what was said of the grant
--      3  how    \                          37  answer  | (1: there is a reply)
--      4  fence   | how it was written      38  status  |
--     12  at      |                         40  check  /
--     20  check  /                          48  lease, 56 span, 64 band while it runs, 65 band at its end
--                                           66  the record of core: version, id (67), digest (83), ..., checksum

local name = ARGV[2]
local field = string.sub(name, 1, 8)
local found = redis.call('HMGET', KEYS[1], field, 'floor')
local record, floor = found[1], found[2]

local from, to = 83, 114
if #name == 16 then
  from, to = 67, 82
end
while record and string.sub(record, from, to) ~= name do
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

-- A stamp is the fence of a grant: it rises although the clock may go back. The fence of whatever was forgotten
-- is not above the floor.
if floor and stamp <= tonumber(floor) then
  stamp = floor + 1
end
if record then
  stamp = math.max(stamp, struct.unpack('>I8', record, 4) + 1)
end
