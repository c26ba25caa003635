-- Marks that somebody waits, so that who settles tells it. No row comes back
-- where there is nothing to wait for.
--
-- $1 namespace  $2 digest  $3 the moment, or NULL for the server's
WITH marked AS (
    UPDATE {table} AS r SET awaited = true
    WHERE r.namespace = $1 AND r.digest = $2 AND r.owner = {table}_owner()
      AND r.state IN ('queued', 'running') AND NOT r.awaited
)
SELECT true
FROM {table} AS r, (
    SELECT coalesce($3::bigint, (extract(epoch FROM clock_timestamp()) * 1000)::bigint) AS now_ms
) AS moment
WHERE r.namespace = $1 AND r.digest = $2 AND r.owner = {table}_owner()
  AND (r.state = 'queued'
    OR r.state = 'running' AND (r.until_ms > now_ms OR r.delivered AND r.after_loss = 'free'))
