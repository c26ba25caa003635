-- Removes a document.
--
-- KEYS 1  documents by name  2  the names in their order
-- ARGV 1  the name

redis.call('HDEL', KEYS[1], ARGV[1])
return redis.call('ZREM', KEYS[2], ARGV[1])
