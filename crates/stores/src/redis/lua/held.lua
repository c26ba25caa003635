-- Checks that the holder of a fence may still act, in the simple case: this claim was granted, and at most
-- renewed since. In every other case the script ends, and the rules of core decide: 0 without a record, 2 with
-- one.
--
-- ARGV 3  bytes 2 to 11 of the record: the version, how it was written, and the fence

if not record then
  return 0
end
local held = string.find(record, ARGV[3], 2, true) == 2
local unsettled = '\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\94\237'
if held and string.find(record, unsettled, 28, true) ~= 28 then
  local word, at, answer, status, check = struct.unpack('>BI8BI2I8', record, 28)
  held = word == 1 and check == 3 * at + 65599 * (status + 65536 * (answer + 256 * word)) + 24301
end
if not held then
  return 2
end
