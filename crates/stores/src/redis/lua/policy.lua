-- The maxmemory-policy of the server that has a shard; nothing where that may not be asked, or is not told.

local told = redis.pcall('INFO', 'memory')
return type(told) == 'string' and string.match(told, 'maxmemory_policy:([^\r\n]+)')
