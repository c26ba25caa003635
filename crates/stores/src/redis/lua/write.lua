-- Writes a record that a rule of core has changed, if it has not changed since it was read; returns 0
-- otherwise. A step whose answer was lost may be repeated: while the record is as the step left it, the answer
-- is the same.
--
-- ARGV 3  bytes 2 to 47 of the record as it was read
--      4  how it is written  5  at  6  the record from its 28th byte on
--      7  the score of its end  8  the time at which it is due, or ''  9  'move' or 'stay' in listings
--     10  'keep', 'drop' or 'put' the request  11  the request to put
--     12  'keep', 'drop' or 'put' the reply  13  the reply to put

local how, at = tonumber(ARGV[4]), tonumber(ARGV[5])
if not record then
  return 0
elseif string.sub(record, 2, 47) ~= ARGV[3] then
  -- How 1 has no token: a claim is recognised by its attempt.
  local own = how ~= 1 and string.sub(record, 28, 47) == string.sub(ARGV[6], 1, 20)
  return own and (struct.unpack('>I8', record, 4)) or 0
end
local moves = ARGV[9] == 'move'
local mark = moves and 48 or string.byte(record, 1)
local head = struct.pack('>BBBI8I8I8', mark, 1, how, stamp, at, stamp + 3 * at + how + 24301)
if ARGV[12] == 'drop' then
  -- First, because a server that is out of memory accepts a script whose first write is a deletion, and then
  -- all its writes.
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
