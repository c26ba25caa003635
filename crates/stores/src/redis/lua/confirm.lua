-- A small write for replicas to confirm. A server that is out of memory accepts a script whose first write is a deletion, and then all its writes:
-- so it first deletes a field that never exists.
--
-- KEYS 1  the key to write  2  a key that never exists

redis.call('HDEL', KEYS[2], '')
redis.call('SET', KEYS[1], 1)
return 1
