-- Claims new keys, many in one statement: most keys are new. Returns the attempt and the
-- fence of each grant; and for a known key its digest, the time and its record, in one
-- column, so that the rows of grants stay small. The rules decide about a known key, and
-- claim.sql where it may be free. There is no row for a key that another transaction has
-- inserted meanwhile.
--
-- $1 namespace  $2 the moment, or NULL for the server's
-- $3 to $22 lists of $2 and $4 to $22 of claim.sql, with one entry per step
WITH moment AS MATERIALIZED (
    SELECT coalesce($2::bigint, (extract(epoch FROM clock_timestamp()) * 1000)::bigint) AS now_ms
),
known AS MATERIALIZED (
    SELECT r.digest, ROW({columns}) AS record
    FROM {table} AS r
    WHERE r.namespace = $1 AND r.digest {among} AND r.owner = {table}_owner()
),
born AS (
    INSERT INTO {table} (
        namespace, digest, operation_id, tenant, project, subject, endpoint, key_value, key_space,
        request_hash, hash_algorithm, request_sender,
        class, lease_ms, retention_ms, remember_ms, keep_expired_ms, after_loss, ttl_basis, expiry,
        state, fence, attempt, attempts, delivered, created_ms, until_ms, free_ms, changed
    )
    SELECT
        $1, digest, operation_id, tenant, project, subject, endpoint, key_value, key_space,
        request_hash, hash_algorithm, request_sender,
        class, lease_ms, retention_ms, remember_ms, keep_expired_ms, after_loss, ttl_basis, expiry,
        'running', nextval('{table}_fence'), attempt, 1, false, now_ms, now_ms + lease_ms,
        CASE WHEN after_loss = 'free' THEN now_ms + lease_ms END, nextval('{table}_fence')
    FROM
        {steps} AS a(digest, operation_id, tenant, project, subject, endpoint, key_value, key_space,
                request_hash, hash_algorithm, request_sender,
                class, lease_ms, retention_ms, remember_ms, keep_expired_ms, after_loss, ttl_basis, expiry,
                attempt, place),
        moment
    -- Without this condition the insert of an existing key would wait for a transaction
    -- that has changed the row and not committed.
    WHERE a.digest <> ALL (ARRAY(SELECT digest FROM known))
    ON CONFLICT DO NOTHING
    RETURNING attempt, fence
)
SELECT attempt, fence, {durable}, NULL::bigint, NULL::record FROM born
UNION ALL
SELECT digest, NULL, NULL, now_ms, record FROM known, moment
