-- What is due in one shard, with its time.
--
-- ARGV 2  how many at most

return {now, redis.call('ZRANGEBYSCORE', KEYS[3], 0, now, 'WITHSCORES', 'LIMIT', 0, ARGV[2])}
