-- As `record.lua`, where a new fence may be given. The fence of whatever was forgotten is not above the floor.

local name = ARGV[2]
local field = string.sub(name, 1, 8)
local found = redis.call('HMGET', KEYS[1], field, 'floor')
local record, floor = found[1], found[2]
if floor and stamp <= tonumber(floor) then
  stamp = floor + 1
end
