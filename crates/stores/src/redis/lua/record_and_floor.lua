-- As `record.lua`, for scripts that may give a new fence: it must be above the floor, which is the highest fence
-- of all records that were removed from the shard.

local name = ARGV[2]
local field = string.sub(name, 1, 8)
local found = redis.call('HMGET', KEYS[1], field, 'floor')
local record, floor = found[1], found[2]
if floor and stamp <= tonumber(floor) then
  stamp = floor + 1
end
