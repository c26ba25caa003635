-- Returns the request of an operation, for redelivery.

return record and redis.call('HGET', KEYS[1], field .. ':q')
