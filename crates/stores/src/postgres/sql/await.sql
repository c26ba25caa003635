-- Marks that a request waits, so that the settlement notifies it. Returns `held`
-- where another transaction has locked the row, so that it could not be marked, and no
-- row where the operation does not run.
--
-- $1 namespace  $2 digest  $3 the moment, or NULL for the server's
WITH running AS MATERIALIZED (
    SELECT r.namespace, r.digest, r.owner, r.awaited
    FROM {table} AS r, (
        SELECT coalesce($3::bigint, (extract(epoch FROM clock_timestamp()) * 1000)::bigint) AS now_ms
    ) AS moment
    WHERE r.namespace = $1 AND r.digest = $2 AND r.owner = {table}_owner()
      AND (r.state = 'queued'
        OR r.state = 'running' AND (r.until_ms > now_ms OR r.delivered AND r.after_loss = 'free'))
),
free AS (
    SELECT r.namespace, r.digest, r.owner
    FROM {table} AS r, running
    WHERE r.namespace = $1 AND r.digest = $2 AND r.owner = running.owner
      AND r.state IN ('queued', 'running') AND NOT r.awaited
    FOR UPDATE OF r SKIP LOCKED
),
marked AS (
    UPDATE {table} AS r SET awaited = true FROM free
    WHERE r.namespace = $1 AND r.digest = $2 AND r.owner = free.owner
    RETURNING true
)
SELECT CASE WHEN running.awaited OR EXISTS (SELECT FROM marked) THEN 'marked' ELSE 'held' END
FROM running
