-- Removes the operations of one shard that are over, and returns those whose reply has expired before their key:
-- the caller removes the reply alone.
--
-- ARGV 2  the limit for each of the two

local over = redis.call('ZRANGEBYSCORE', KEYS[2], 0, now, 'LIMIT', 0, ARGV[2])
if #over > 0 then
  -- The latest stamp is not below the fence of any removed record.
  local latest = redis.call('ZREVRANGE', KEYS[2], 0, 0, 'WITHSCORES')[2]
  local floor = redis.call('HGET', KEYS[1], 'floor')
  local beside, indexed, behind = {}, {}, {}
  for place, ending in ipairs(over) do
    local field = string.sub(ending, 1, -3)
    beside[3 * place - 2], beside[3 * place - 1], beside[3 * place] = field, field .. ':r', field .. ':q'
    indexed[2 * place - 1], indexed[2 * place] = field, ending
    behind[place] = field .. '+'
  end
  -- First the deletion: a server that is out of memory accepts a script whose first write is a deletion, and then all its writes.
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
