-- In the order of ids, so that whole pages become free.
DELETE FROM {table} WHERE id IN (SELECT id FROM {table} ORDER BY id LIMIT ?1)
