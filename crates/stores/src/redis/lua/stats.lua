-- Counts one shard: operations, running, queued, unknown, paused, bytes.

-- Every operation is in the index twice.
local operations = redis.call('ZCARD', KEYS[2]) / 2
if operations == 0 then
  return {0, 0, 0, 0, 0, 0}
end

local function count(band, from, to)
  local first = band * 17592186044416
  return redis.call('ZCOUNT', KEYS[2], first + from, first + to)
end
local always = 17592186044415

local bytes = 0
for _, key in ipairs(KEYS) do
  -- The user may lack the right to run MEMORY: then the bytes are not counted.
  local used = redis.pcall('MEMORY', 'USAGE', key)
  bytes = bytes + (tonumber(used) or 0)
end
return {
  operations,
  count(2, now + 1, always) + count(3, now + 1, always) + count(4, now + 1, always),
  count(5, 0, always) + count(4, 0, now),
  count(6, 0, always) + count(2, 0, now),
  count(7, 0, always),
  bytes,
}
