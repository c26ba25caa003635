-- Grants an operation that is not on record. Otherwise returns the record and its reply, for the rules to
-- decide.
--
-- ARGV 3  the record from its 28th byte on  4  the score of its end, without the current time

if record then
  local reply = string.byte(record, 37) == 1 and redis.call('HGET', KEYS[1], field .. ':r')
  return {now, record, reply}
end

local head = struct.pack('>BBBI8I8I8', 48, 1, 1, stamp, now, stamp + 3 * now + 24302)
redis.call('HSET', KEYS[1], field, head .. ARGV[3])
-- Formatted as integers: the server parses them faster than as fractions.
redis.call('ZADD', KEYS[2], string.format('%d', stamp), field, string.format('%d', now + ARGV[4]), field .. ':e')
return stamp
