-- The beginning of every script: the moment by which it judges, and the stamp that a change would get.
--
-- ARGV 1  empty, or the moment (ms) and the stamp (us) of a clock that is given
--
-- A stamp is the time in microseconds.

local now, stamp
if ARGV[1] == '' then
  local time = redis.call('TIME')
  stamp = time[1] * 1000000 + time[2]
  now = math.floor(stamp / 1000)
else
  now, stamp = string.match(ARGV[1], '^(%d+) (%d+)$')
  now, stamp = tonumber(now), tonumber(stamp)
end
