-- From the left, so that whole pages come free one after the other.
DELETE FROM {table} WHERE id IN (SELECT id FROM {table} ORDER BY id LIMIT ?1)
