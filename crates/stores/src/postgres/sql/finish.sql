-- Records the outcome that the holder of a fence reports. Returns the times of the
-- outcome, or no row where the holder may not act: then the rules decide on the
-- record that is read next.
--
-- $1 namespace  $2, $3 the digest, or its bounds  $4 operation_id, or NULL
-- $5 the moment, or NULL for the server's  $6 fence
-- $7 state  $8 answer  $9 status  $10 reply
WITH moment AS MATERIALIZED (
    SELECT coalesce($5::bigint, (extract(epoch FROM clock_timestamp()) * 1000)::bigint) AS now_ms
),
written AS (
    UPDATE {table} AS r SET
        state = $7,
        completed_ms = now_ms,
        answer = $8, status = $9, reply = $10,
        {kept},
        changed = nextval('{table}_fence')
    FROM moment
    WHERE r.namespace = $1 AND r.digest BETWEEN $2 AND $3 AND r.owner = {table}_owner()
      AND ($4::bytea IS NULL OR r.operation_id = $4)
      AND r.fence = $6 AND r.state IN ('running', 'unknown')
    RETURNING r.completed_ms, r.expires_ms, r.digest, r.awaited
)
SELECT completed_ms, expires_ms, CASE WHEN awaited
    THEN pg_notify('{channel}', $1 || ':' || encode(digest, 'hex')) IS NULL
    ELSE true
END,
{durable} FROM written
