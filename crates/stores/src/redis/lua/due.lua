-- Returns the due operations of one shard, with the times at which they were due.
--
-- ARGV 2  the limit

return {now, redis.call('ZRANGEBYSCORE', KEYS[3], 0, now, 'WITHSCORES', 'LIMIT', 0, ARGV[2])}
