-- Writes a record that a rule of core has changed, if it is still as that rule found it: else 0. The same step
-- may come again, because its answer was lost on the way: as long as the record is as it left it, it is told
-- what it was told before.
--
-- ARGV 3  how it was found, bytes 2 to 47
--      4  how it is written  5  at  6  the record from its 28th byte on
--      7  the score of its end  8  when it is due, or ''  9  'move' or 'stay' in listings
--     10  'keep', 'drop' or 'put' the request  11  the request to put
--     12  'keep', 'drop' or 'put' the reply  13  the reply to put

local how, at = tonumber(ARGV[4]), tonumber(ARGV[5])
if not record then
  return 0
elseif string.sub(record, 2, 47) ~= ARGV[3] then
  -- How 1 bears no token: a claim is recognised by its attempt.
  local own = how ~= 1 and string.sub(record, 28, 47) == string.sub(ARGV[6], 1, 20)
  return own and (struct.unpack('>I8', record, 4)) or 0
end
local moves = ARGV[9] == 'move'
local mark = moves and 48 or string.byte(record, 1)
local head = struct.pack('>BBBI8I8I8', mark, 1, how, stamp, at, stamp + 3 * at + how + 24301)
if ARGV[12] == 'drop' then
  -- First, because a server that is full lets a script make room, and then whatever else it does.
  redis.call('HDEL', KEYS[1], field .. ':r')
end
redis.call('HSET', KEYS[1], field, head .. ARGV[6])
redis.call('ZADD', KEYS[2], ARGV[7], field .. ':e')
if ARGV[8] == '' then
  redis.call('ZREM', KEYS[3], field)
else
  redis.call('ZADD', KEYS[3], ARGV[8], field)
end
for place, beside in pairs({[10] = ':q', [12] = ':r'}) do
  if ARGV[place] == 'put' then
    redis.call('HSET', KEYS[1], field .. beside, ARGV[place + 1])
  elseif ARGV[place] == 'drop' then
    redis.call('HDEL', KEYS[1], field .. beside)
  end
end
if moves then
  redis.call('ZADD', KEYS[2], stamp, field)
  if string.byte(record, 1) == 49 then
    redis.pcall('PUBLISH', KEYS[1], name)
  end
end
return stamp
