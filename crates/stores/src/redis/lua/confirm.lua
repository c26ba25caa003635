-- Writes next to nothing, so that replicas have something to confirm. A server that is full lets a script
-- delete, whether there is anything or not, and then whatever else it does.
--
-- KEYS 1  what is written  2  what is never there

redis.call('HDEL', KEYS[2], '')
redis.call('SET', KEYS[1], 1)
return 1
