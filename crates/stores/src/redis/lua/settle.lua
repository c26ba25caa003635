-- Writes down what the holder says became of its grant, and wakes those who wait.
--
-- ARGV 4  word  5  answer  6  status  7  the reply, if there is one

word, answer, status = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
check = 3 * now + 65599 * (status + 65536 * (answer + 256 * word)) + 24301
local settled = '0' .. string.sub(record, 2, 27)
  .. struct.pack('>BI8BI2I8', word, now, answer, status, check) .. string.sub(record, 48)
if ARGV[7] then
  redis.call('HSET', KEYS[1], field, settled, field .. ':r', ARGV[7])
else
  redis.call('HSET', KEYS[1], field, settled)
end

local ends
if word == 2 or word == 3 then
  ends = ended * 17592186044416 + now + span
elseif word == 4 then
  ends = now + lease
else
  -- Lost is band 6, paused band 7.
  ends = (word + 1) * 17592186044416 + now
end
redis.call('ZADD', KEYS[2], stamp, field, ends, field .. ':e')
if string.byte(record, 1) == 49 then
  redis.pcall('PUBLISH', KEYS[1], name)
end
return 1
