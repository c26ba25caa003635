-- Writes a document. Returns 0 if one of that name exists and must not be replaced.
--
-- KEYS 1  documents by name  2  the names in their order
-- ARGV 1  the name  2  the document  3  'put' or 'add'

if ARGV[3] == 'add' and redis.call('HEXISTS', KEYS[1], ARGV[1]) == 1 then
  return 0
end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
redis.call('ZADD', KEYS[2], 0, ARGV[1])
return 1
