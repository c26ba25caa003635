-- Returns the record, and marks it so that its settlement is published.

if not record then
  return {now}
end
if string.byte(record, 1) ~= 49 then
  redis.call('HSET', KEYS[1], field, '1' .. string.sub(record, 2))
end
return {now, record}
