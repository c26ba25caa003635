-- The beginning of every script: the moment by which it judges, and the stamp that a change would get.
--
-- ARGV 1  the number of the shard; behind it, where the clock is given, the moment (ms) and the stamp (us)
--
-- A stamp is the time in microseconds, its last eight bits replaced by the shard's number. So stamps of
-- all shards can be put into one order and no two are alike.

local shard, now, stamp = tonumber(ARGV[1]), nil, nil
if shard then
  local time = redis.call('TIME')
  stamp = time[1] * 1000000 + time[2]
  now = math.floor(stamp / 1000)
else
  shard, now, stamp = string.match(ARGV[1], '^(%d+) (%d+) (%d+)$')
  now, stamp = tonumber(now), tonumber(stamp)
end
stamp = stamp - stamp % 256 + shard
