-- Locks a record that a rule will change, and returns whether it has a request.
--
-- $1 namespace  $2, $3 the digest, or its bounds  $4 operation_id, or NULL
-- $5 the moment, or NULL for the server's
SELECT coalesce($5::bigint, (extract(epoch FROM clock_timestamp()) * 1000)::bigint) AS now_ms, {columns},
    r.request IS NOT NULL AS requested
FROM {table} AS r
WHERE r.namespace = $1 AND r.digest BETWEEN $2 AND $3 AND r.owner = {table}_owner()
  AND ($4::bytea IS NULL OR r.operation_id = $4)
FOR UPDATE OF r
