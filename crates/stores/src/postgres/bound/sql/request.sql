-- The request of a record, unless the operation was granted again meanwhile.
--
-- $1 namespace  $2 digest  $3 fence
SELECT r.request FROM {table} AS r
WHERE r.namespace = $1 AND r.digest = $2 AND r.owner = {table}_owner() AND r.fence = $3
