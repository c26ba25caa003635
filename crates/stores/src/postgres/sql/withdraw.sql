-- Withdraws the claim of an attempt, if that attempt holds the operation.
--
-- $1 namespace  $2 digest  $3 the moment, or NULL for the server's  $4 attempt
WITH moment AS MATERIALIZED (
    SELECT coalesce($3::bigint, (extract(epoch FROM clock_timestamp()) * 1000)::bigint) AS now_ms
),
written AS (
    UPDATE {table} AS r SET
        state = 'released',
        until_ms = now_ms + r.lease_ms,
        free_ms = 0,
        due_ms = NULL,
        sweep_ms = now_ms + greatest(r.lease_ms, {grace_ms}),
        changed = nextval('{table}_fence')
    FROM moment
    WHERE r.namespace = $1 AND r.digest = $2 AND r.owner = {table}_owner()
      AND r.attempt = $4 AND NOT r.delivered AND r.state IN ('running', 'unknown')
    RETURNING r.digest, r.awaited
)
SELECT CASE WHEN awaited
    THEN pg_notify('{channel}', $1 || ':' || encode(digest, 'hex')) IS NULL
    ELSE true
END FROM written
