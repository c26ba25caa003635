-- The beginning of every script: the current time, and the stamp that a change would get.
--
-- ARGV 1  empty for the server's clock, or time (ms) and stamp (us) of another clock, in tests
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
