-- Returns the record and its reply.

if not record then
  return {now}
end
local reply = string.byte(record, 37) == 1 and redis.call('HGET', KEYS[1], field .. ':r')
return {now, record, reply}
