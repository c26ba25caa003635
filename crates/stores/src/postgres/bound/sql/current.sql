-- Whether the holder of a fence may still act, without a lock.
--
-- $1 namespace  $2, $3 the bounds of the digest  $4 operation_id  $5 fence
SELECT true FROM {table} AS r
WHERE r.namespace = $1 AND r.digest BETWEEN $2 AND $3 AND r.owner = {table}_owner()
  AND r.operation_id = $4 AND r.fence = $5 AND r.state IN ('running', 'unknown')
