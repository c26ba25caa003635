-- Writes a locked record that a rule has changed, under the same fence or a new one.
-- The reply stays, unless another is given or no answer is kept.
--
--  $1 namespace  $2 digest  $3 state  $4 whether the fence is new  $5 attempts  $6 delivered
--  $7 until_ms  $8 completed_ms  $9 touched_ms  $10 answer  $11 status  $12 reply
-- $13 expires_ms  $14 free_ms  $15 due_ms  $16 sweep_ms
WITH written AS (
    UPDATE {table} AS r SET
        state = $3,
        fence = CASE WHEN $4 THEN nextval('{table}_fence') ELSE r.fence END,
        attempts = $5, delivered = $6, until_ms = $7, completed_ms = $8, touched_ms = $9,
        answer = $10, status = $11,
        reply = CASE WHEN $10 = 'kept' THEN coalesce($12, r.reply) END,
        expires_ms = $13, free_ms = $14, due_ms = $15, sweep_ms = $16,
        changed = nextval('{table}_fence')
    WHERE r.namespace = $1 AND r.digest = $2 AND r.owner = {table}_owner()
    RETURNING r.digest, r.awaited, r.fence
)
SELECT fence, CASE WHEN awaited
    THEN pg_notify('{channel}', $1 || ':' || encode(digest, 'hex')) IS NULL
    ELSE true
END, {durable} FROM written
