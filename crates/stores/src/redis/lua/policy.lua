-- Returns the maxmemory-policy of the server that has a shard; false where the user may not run INFO, or the
-- server does not report the policy.

local info = redis.pcall('INFO', 'memory')
return type(info) == 'string' and string.match(info, 'maxmemory_policy:([^\r\n]+)')
