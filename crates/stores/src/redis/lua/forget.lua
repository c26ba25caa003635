-- Removes an operation if its record has not changed since it was read; returns 0 otherwise. The floor stays,
-- so that its fence is never used again.
--
-- ARGV 3  bytes 2 to 47 of the record as it was read

if not record or string.sub(record, 2, 47) ~= ARGV[3] then
  return 0
end
-- First the deletion: a server that is out of memory accepts a script whose first write is a deletion, and then all its writes.
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
