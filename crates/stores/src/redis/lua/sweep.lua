-- Takes from one shard what is over, and gives what must be looked at: whose reply has expired before its key.
--
-- ARGV 2  how many at most of each

local over = redis.call('ZRANGEBYSCORE', KEYS[2], 0, now, 'LIMIT', 0, ARGV[2])
if #over > 0 then
  -- The latest stamp is no lower than the fence of anything that goes.
  local latest = redis.call('ZREVRANGE', KEYS[2], 0, 0, 'WITHSCORES')[2]
  local floor = redis.call('HGET', KEYS[1], 'floor')
  local beside, indexed, behind = {}, {}, {}
  for place, ending in ipairs(over) do
    local field = string.sub(ending, 1, -3)
    beside[3 * place - 2], beside[3 * place - 1], beside[3 * place] = field, field .. ':r', field .. ':q'
    indexed[2 * place - 1], indexed[2 * place] = field, ending
    behind[place] = field .. '+'
  end
  -- A server that is full lets a script make room, and then whatever else it does.
  redis.call('HDEL', KEYS[1], unpack(beside))
  redis.call('ZREM', KEYS[2], unpack(indexed))
  if not floor or tonumber(floor) < tonumber(latest) then
    redis.call('HSET', KEYS[1], 'floor', latest)
  end
  for place, there in ipairs(redis.call('HMGET', KEYS[1], unpack(behind))) do
    if there then
      -- Records further on in the chain must still be found.
      redis.call('HSET', KEYS[1], string.sub(behind[place], 1, -2), '-')
    end
  end
end

local first = 17592186044416
local expired = redis.call('ZRANGEBYSCORE', KEYS[2], first, first + now, 'LIMIT', 0, ARGV[2])
return {now, #over, expired}
