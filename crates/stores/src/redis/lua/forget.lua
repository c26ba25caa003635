-- Forgets an operation, if it is still as it was found: else 0. The floor stays, so that its fence is never
-- given again.
--
-- ARGV 3  how it was found, bytes 2 to 47

if not record or string.sub(record, 2, 47) ~= ARGV[3] then
  return 0
end
-- A server that is full lets a script make room, and then whatever else it does.
redis.call('HDEL', KEYS[1], field, field .. ':r', field .. ':q')
redis.call('HSET', KEYS[1], 'floor', stamp)
if redis.call('HEXISTS', KEYS[1], field .. '+') == 1 then
  -- Records further on in the chain must still be found.
  redis.call('HSET', KEYS[1], field, '-')
end
redis.call('ZREM', KEYS[2], field, field .. ':e')
redis.call('ZREM', KEYS[3], field)
if string.byte(record, 1) == 49 then
  redis.pcall('PUBLISH', KEYS[1], name)
end
return 1
