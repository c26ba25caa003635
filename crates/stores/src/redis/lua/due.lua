-- What is due in one shard, with its time.
--
-- KEYS 4 queue
-- ARGV 2  how many at most

return {now, redis.call('ZRANGEBYSCORE', KEYS[4], 0, now, 'WITHSCORES', 'LIMIT', 0, ARGV[2])}
