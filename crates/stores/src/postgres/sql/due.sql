-- Grants queued work that is due, each operation to one caller.
--
-- $1 namespace  $2 the moment, or NULL for the server's  $3 how many at most
WITH moment AS MATERIALIZED (
    SELECT coalesce($2::bigint, (extract(epoch FROM clock_timestamp()) * 1000)::bigint) AS now_ms
),
next AS MATERIALIZED (
    SELECT r.namespace, r.digest, r.owner, r.due_ms, r.changed
    FROM {table} AS r, moment
    WHERE r.namespace = $1 AND r.due_ms <= now_ms AND r.owner = (SELECT {table}_owner())
    ORDER BY r.due_ms, r.changed
    LIMIT $3
    FOR UPDATE OF r SKIP LOCKED
),
-- Numbered before the update, which writes the rows in any order.
numbered AS MATERIALIZED (
    SELECT next.*, nextval('{table}_fence') AS fence, nextval('{table}_fence') AS place FROM next
),
given AS (
    UPDATE {table} AS r SET
        state = 'running',
        fence = next.fence,
        attempts = r.attempts + 1,
        until_ms = now_ms + r.lease_ms,
        completed_ms = NULL, touched_ms = NULL, answer = NULL, status = NULL, reply = NULL,
        expires_ms = NULL, free_ms = NULL, sweep_ms = NULL,
        due_ms = CASE WHEN r.after_loss = 'free' THEN now_ms + r.lease_ms END,
        changed = next.place
    FROM numbered AS next, moment
    WHERE r.namespace = next.namespace AND r.digest = next.digest AND r.owner = next.owner
    RETURNING next.due_ms AS was_due_ms, next.changed AS was_changed, r.request, {columns}
)
SELECT * FROM given ORDER BY was_due_ms, was_changed
