-- Records the settlement of the holder of a grant, and wakes the waiters. A finished record is returned as it
-- was written, without its reply: the rules of core derive the times of the outcome from it.
--
-- ARGV 4  word, one byte  5  answer and status, three bytes  6  their check, without the current time
--      7  when the state ends: after the record's 'span', after its 'lease', or the number of a band that time
--         does not end  8  the reply, if any

local settled = '0' .. string.sub(record, 2, 27)
  .. ARGV[4] .. struct.pack('>I8', now) .. ARGV[5] .. struct.pack('>I8', 3 * now + ARGV[6])
  .. string.sub(record, 48)
if ARGV[8] then
  redis.call('HSET', KEYS[1], field, settled, field .. ':r', ARGV[8])
else
  redis.call('HSET', KEYS[1], field, settled)
end

local ends, answer = ARGV[7], 1
if ends == 'span' then
  local span, _, band = struct.unpack('>I8BB', record, 56)
  ends = band * 17592186044416 + span
  answer = {now, settled}
elseif ends == 'lease' then
  ends = struct.unpack('>I8', record, 48)
else
  ends = ends * 17592186044416
end
redis.call('ZADD', KEYS[2], string.format('%d', stamp), field, string.format('%d', now + ends), field .. ':e')
if string.byte(record, 1) == 49 then
  redis.pcall('PUBLISH', KEYS[1], name)
end
return answer
