-- Extends the holder's lease. The operation keeps its position in listings.

local block = struct.pack('>BI8BI2I8', 1, now, 0, 0, 3 * now + 65599 * 65536 * 256 + 24301)
redis.call('HSET', KEYS[1], field, string.sub(record, 1, 27) .. block .. string.sub(record, 48))
local lease, _, band = struct.unpack('>I8I8B', record, 48)
redis.call('ZADD', KEYS[2], band * 17592186044416 + now + lease, field .. ':e')
return 1
