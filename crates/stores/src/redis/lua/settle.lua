-- Writes down what the holder says became of its grant, and wakes those who wait.
--
-- ARGV 4  word, one byte  5  answer and status, three bytes  6  their check, but for the moment
--      7  when it ends: after its 'span', after its 'lease', or by itself in this band  8  the reply, if any

local settled = '0' .. string.sub(record, 2, 27)
  .. ARGV[4] .. struct.pack('>I8', now) .. ARGV[5] .. struct.pack('>I8', 3 * now + ARGV[6])
  .. string.sub(record, 48)
if ARGV[8] then
  redis.call('HSET', KEYS[1], field, settled, field .. ':r', ARGV[8])
else
  redis.call('HSET', KEYS[1], field, settled)
end

local ends = ARGV[7]
if ends == 'span' then
  local span, _, band = struct.unpack('>I8BB', record, 56)
  ends = band * 17592186044416 + span
elseif ends == 'lease' then
  ends = struct.unpack('>I8', record, 48)
else
  ends = ends * 17592186044416
end
redis.call('ZADD', KEYS[2], string.format('%d', stamp), field, string.format('%d', now + ends), field .. ':e')
if string.byte(record, 1) == 49 then
  redis.pcall('PUBLISH', KEYS[1], name)
end
return 1
