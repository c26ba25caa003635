-- Claims a key in one statement: grants a new key, takes over a free row, or returns
-- the row that exists. Queued work is recorded in the same way. It never waits: a free
-- row that another transaction has locked is returned as it is.
--
--  $1 namespace  $2 digest  $3 the moment, or NULL for the server's
--  $4 operation_id  $5 tenant  $6 project  $7 subject  $8 endpoint  $9 key_value
-- $10 key_space  $11 request_hash  $12 hash_algorithm  $13 request_sender
-- $14 class  $15 lease_ms  $16 retention_ms  $17 remember_ms
-- $18 keep_expired_ms  $19 after_loss  $20 ttl_basis  $21 expiry  $22 attempt
-- $23 request, or NULL  $24 the advisory lock of a caller in a transaction, or NULL
-- $25 the fence of a lost grant that was judged to be free, or NULL
-- $26 NULL, or the delay in milliseconds: then the operation is queued instead
WITH moment AS MATERIALIZED (
    SELECT
        coalesce($3::bigint, (extract(epoch FROM clock_timestamp()) * 1000)::bigint) AS now_ms,
        -- A claim that another transaction has not committed is not visible, but its
        -- advisory lock is.
        $24::bigint IS NULL OR pg_try_advisory_xact_lock(
            hashtextextended('{table} ' || coalesce({table}_owner(), ''), $24::bigint)) AS ours,
        CASE WHEN $26::bigint IS NULL THEN 1 ELSE 0 END AS started,
        CASE WHEN $26::bigint IS NULL THEN 'running' ELSE 'queued' END AS state
),
free AS (
    SELECT
        r.namespace, r.digest, r.owner,
        -- Whether it is still the same operation.
        r.state = 'released' AND r.until_ms > now_ms
            OR coalesce(r.free_ms > now_ms, true) AS alive
    FROM {table} AS r, moment
    WHERE ours AND r.namespace = $1 AND r.digest = $2 AND r.owner = {table}_owner()
      AND (r.free_ms <= now_ms
        OR (r.fence = $25 AND (r.state = 'unknown' OR (r.state = 'running' AND r.until_ms <= now_ms))))
    FOR UPDATE OF r SKIP LOCKED
),
taken AS (
    UPDATE {table} AS r SET
        operation_id = CASE WHEN free.alive THEN r.operation_id ELSE $4 END,
        attempts = CASE WHEN free.alive THEN r.attempts ELSE 0 END + started,
        created_ms = CASE WHEN free.alive THEN r.created_ms ELSE now_ms END,
        tenant = $5, project = $6, subject = $7, endpoint = $8, key_value = $9, key_space = $10,
        request_hash = $11, hash_algorithm = $12, request_sender = $13, request = $23,
        class = $14, lease_ms = $15, retention_ms = $16, remember_ms = $17,
        keep_expired_ms = $18, after_loss = $19, ttl_basis = $20, expiry = $21,
        state = moment.state,
        fence = CASE WHEN $26 IS NULL THEN nextval('{table}_fence') ELSE 0 END,
        attempt = $22, delivered = $26 IS NOT NULL,
        until_ms = now_ms + coalesce($26, $15),
        completed_ms = NULL, touched_ms = NULL,
        answer = NULL, status = NULL, reply = NULL,
        expires_ms = NULL,
        free_ms = CASE WHEN $26 IS NULL AND $19 = 'free' THEN now_ms + $15 END,
        due_ms = now_ms + $26, sweep_ms = NULL,
        changed = nextval('{table}_fence'),
        awaited = false
    FROM free, moment
    WHERE r.namespace = $1 AND r.digest = $2 AND r.owner = free.owner
    RETURNING r.operation_id, r.fence
),
born AS (
    INSERT INTO {table} (
        namespace, digest, operation_id, tenant, project, subject, endpoint, key_value, key_space,
        request_hash, hash_algorithm, request_sender, request,
        class, lease_ms, retention_ms, remember_ms, keep_expired_ms, after_loss, ttl_basis, expiry,
        state, fence, attempt, attempts, delivered, created_ms, until_ms,
        free_ms, due_ms, changed
    )
    SELECT
        $1, $2, $4, $5, $6, $7, $8, $9, $10,
        $11, $12, $13, $23,
        $14, $15, $16, $17, $18, $19, $20, $21,
        moment.state, CASE WHEN $26 IS NULL THEN nextval('{table}_fence') ELSE 0 END,
        $22, started, $26 IS NOT NULL, now_ms, now_ms + coalesce($26, $15),
        CASE WHEN $26 IS NULL AND $19 = 'free' THEN now_ms + $15 END, now_ms + $26,
        nextval('{table}_fence')
    FROM moment
    WHERE ours AND NOT EXISTS (
        SELECT FROM {table} AS r
        WHERE r.namespace = $1 AND r.digest = $2 AND r.owner = {table}_owner()
    )
    ON CONFLICT DO NOTHING
    RETURNING operation_id, fence
)
SELECT 'granted' AS found, NULL::bigint AS now_ms, {granted_columns}, {durable} FROM taken AS r
UNION ALL
SELECT 'granted', NULL, {granted_columns}, {durable} FROM born AS r
UNION ALL
SELECT 'known', now_ms, {columns}, NULL
FROM moment, {table} AS r
WHERE r.namespace = $1 AND r.digest = $2 AND r.owner = {table}_owner()
  AND NOT EXISTS (SELECT FROM taken) AND NOT EXISTS (SELECT FROM born)
UNION ALL
SELECT 'locked', now_ms, {no_columns}, NULL FROM moment WHERE NOT ours
