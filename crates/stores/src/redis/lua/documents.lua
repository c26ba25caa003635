-- Documents in the order of their names, with these: name, document, name, document, ...
--
-- KEYS 1  documents by name  2  the names in their order
-- ARGV 1  'rising' or 'falling'  2  from where, as Redis writes it  3  how many at most

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
