-- Takes from one shard what is over, and gives what must be looked at: whose reply has expired before its key.
--
-- KEYS 1 operations  2 changed  3 ends
-- ARGV 2  how many at most of each

local over = redis.call('ZRANGEBYSCORE', KEYS[3], 0, now, 'LIMIT', 0, ARGV[2])
if #over > 0 then
  local all, behind = {}, {}
  for place, field in ipairs(over) do
    all[3 * place - 2], all[3 * place - 1], all[3 * place] = field, field .. ':r', field .. ':q'
    behind[place] = field .. '+'
  end
  redis.call('HDEL', KEYS[1], unpack(all))
  redis.call('ZREM', KEYS[2], unpack(over))
  redis.call('ZREM', KEYS[3], unpack(over))
  behind = redis.call('HMGET', KEYS[1], unpack(behind))
  for place, field in ipairs(over) do
    if behind[place] then
      -- Who lies further on must still be found.
      redis.call('HSET', KEYS[1], field, '-')
    end
  end
end

local first = 17592186044416
local expired = redis.call('ZRANGEBYSCORE', KEYS[3], first, first + now, 'LIMIT', 0, ARGV[2])
return {now, #over, expired}
