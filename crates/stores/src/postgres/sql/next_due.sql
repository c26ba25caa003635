-- $1 namespace
SELECT min(r.due_ms) FROM {table} AS r
WHERE r.namespace = $1 AND r.due_ms IS NOT NULL AND r.owner = (SELECT {table}_owner())
