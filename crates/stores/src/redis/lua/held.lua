-- Whether this fence may still act on the record, in the plain case: granted to who asked for it, and
-- running or unknown. All else is judged by the caller: 0 where there is nothing, 2 where there is something.
--
-- ARGV 3  the fence, eight bytes

if not record then
  return 0
end
local word, at, answer, status, check = struct.unpack('>BI8BI2I8', record, 28)
local held = string.sub(record, 2, 3) == '\1\1' and string.sub(record, 4, 11) == ARGV[3]
  and (word == 0 or word == 1 or word == 5)
  and check == 3 * at + 65599 * (status + 65536 * (answer + 256 * word)) + 24301
if not held then
  return 2
end
local lease, span, running, ended = struct.unpack('>I8I8BB', record, 48)
