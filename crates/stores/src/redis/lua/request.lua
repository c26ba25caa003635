-- Gives the request of an operation that is to be delivered again.

return record and redis.call('HGET', KEYS[1], field .. ':q')
