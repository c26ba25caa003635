-- Grants an operation that is not on record; one that is, is given with its reply, to be judged.
--
-- ARGV 3  the record from its 28th byte on

if record then
  local reply = string.byte(record, 37) == 1 and redis.call('HGET', KEYS[1], field .. ':r')
  return {now, record, reply}
end

local rest = ARGV[3]
local lease, _, band = struct.unpack('>I8I8B', rest, 21)
local head = struct.pack('>BBBI8I8I8', 48, 1, 1, stamp, now, stamp + 3 * now + 24302)
redis.call('HSET', KEYS[1], field, head .. rest)
redis.call('ZADD', KEYS[2], stamp, field, band * 17592186044416 + now + lease, field .. ':e')
return stamp
