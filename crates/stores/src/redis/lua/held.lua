-- Whether this fence may still act on the record, in the plain case: granted to this claim, and nothing
-- said since, but that it is renewed. All else is judged by the caller: 0 where there is nothing, 2 where there
-- is something.
--
-- ARGV 3  the version, how it was written, and the fence

if not record then
  return 0
end
local held = string.find(record, ARGV[3], 2, true) == 2
local unsaid = '\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\94\237'
if held and string.find(record, unsaid, 28, true) ~= 28 then
  local word, at, answer, status, check = struct.unpack('>BI8BI2I8', record, 28)
  held = word == 1 and check == 3 * at + 65599 * (status + 65536 * (answer + 256 * word)) + 24301
end
if not held then
  return 2
end
