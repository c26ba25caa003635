-- Purges an operation. A mark stays that makes every earlier fence stale, as long as
-- a claim could have been under way: without it a concurrent claim could insert a row
-- with a lower fence.
--
-- $1 namespace  $2 digest  $3 the moment
WITH written AS (
    UPDATE {table} AS r SET
        state = 'released', fence = nextval('{table}_fence'), delivered = false,
        until_ms = $3, completed_ms = NULL, touched_ms = NULL,
        request = NULL, answer = NULL, status = NULL, reply = NULL,
        expires_ms = NULL, free_ms = 0, due_ms = NULL, sweep_ms = $3 + {grace_ms},
        changed = nextval('{table}_fence')
    WHERE r.namespace = $1 AND r.digest = $2 AND r.owner = {table}_owner()
    RETURNING r.digest, r.awaited
)
SELECT CASE WHEN awaited
    THEN pg_notify('{channel}', $1 || ':' || encode(digest, 'hex')) IS NULL
    ELSE true
END FROM written
