-- Records an operation with its request, to be delivered later. If it is on record, returns the record and
-- its reply, for the rules to decide.
--
-- ARGV 3  the record from its 28th byte on  4  the delay in ms  5  the request

if record then
  local reply = string.byte(record, 37) == 1 and redis.call('HGET', KEYS[1], field .. ':r')
  return {now, record, reply}
end

local due = now + ARGV[4]
local queued = struct.pack('>BBBI8I8I8', 48, 1, 4, stamp, now, stamp + 3 * now + 24305)
  .. struct.pack('>BI8BI2I8', 7, due, 0, 0, 3 * due + 65599 * 65536 * 256 * 7 + 24301)
  .. string.sub(ARGV[3], 21)
redis.call('HSET', KEYS[1], field, queued, field .. ':q', ARGV[5])
redis.call('ZADD', KEYS[2], stamp, field, 5 * 17592186044416 + due, field .. ':e')
redis.call('ZADD', KEYS[3], due, field)
return stamp
