-- Returns documents in the order of their names: name, document, name, document, ...
--
-- KEYS 1  documents by name  2  the names in their order
-- ARGV 1  'rising' or 'falling'  2  the first name, in the syntax of ZRANGEBYLEX  3  the limit

local names
if ARGV[1] == 'rising' then
  names = redis.call('ZRANGEBYLEX', KEYS[2], ARGV[2], '+', 'LIMIT', 0, ARGV[3])
else
  names = redis.call('ZREVRANGEBYLEX', KEYS[2], ARGV[2], '-', 'LIMIT', 0, ARGV[3])
end
local answer = {}
for _, name in ipairs(names) do
  answer[#answer + 1] = name
  answer[#answer + 1] = redis.call('HGET', KEYS[1], name)
end
return answer
