-- Records the outcome that the holder of a fence reports. Returns the times of the
-- outcome, and no row where the holder may not act: then the rules decide on the
-- record that is read next.
--
-- $1 namespace  $2 the moment, or NULL for the server's
-- $3 digest  $4 fence  $5 state  $6 answer  $7 status  $8 reply
--
-- A row that another transaction has locked is skipped, so that the settlement does not
-- delay others: it is repeated under a limit.
WITH held AS MATERIALIZED (
    SELECT r.owner, a.*
    FROM {table} AS r, {steps} AS a(digest, fence, state, answer, status, reply, place)
    WHERE r.namespace = $1 AND r.digest {among} AND r.digest = a.digest AND r.owner = {table}_owner()
      AND r.fence = a.fence AND r.state IN ('running', 'unknown')
    FOR UPDATE OF r SKIP LOCKED
),
written AS (
    UPDATE {table} AS r SET
        state = a.state,
        completed_ms = now_ms,
        answer = a.answer, status = a.status, reply = a.reply,
        {kept},
        changed = nextval('{table}_fence')
    FROM
        held AS a,
        (SELECT coalesce($2::bigint, (extract(epoch FROM clock_timestamp()) * 1000)::bigint) AS now_ms) AS moment
    WHERE r.namespace = $1 AND r.digest {among} AND r.digest = a.digest AND r.owner = a.owner
    RETURNING a.place, r.completed_ms, r.expires_ms, r.digest, r.awaited
)
SELECT place, completed_ms, expires_ms, CASE WHEN awaited
    THEN pg_notify('{channel}', $1 || ':' || encode(digest, 'hex')) IS NULL
    ELSE true
END, {durable} FROM written
