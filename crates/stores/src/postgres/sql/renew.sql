-- Extends the lease of the holder of a fence.
--
-- $1 namespace  $2 digest  $3 the moment, or NULL for the server's  $4 fence
UPDATE {table} AS r SET
    state = 'running',
    until_ms = now_ms + r.lease_ms,
    free_ms = CASE WHEN r.after_loss = 'free' AND NOT r.delivered THEN now_ms + r.lease_ms END,
    due_ms = CASE WHEN r.after_loss = 'free' AND r.delivered THEN now_ms + r.lease_ms END
FROM (
    SELECT coalesce($3::bigint, (extract(epoch FROM clock_timestamp()) * 1000)::bigint) AS now_ms
) AS moment
WHERE r.namespace = $1 AND r.digest = $2 AND r.owner = {table}_owner()
  AND r.fence = $4 AND r.state IN ('running', 'unknown')
RETURNING true
