-- The claim of a new key: most are. Whatever is known already, claim.sql sorts
-- out; here no row comes back.
--
-- $1 to $22 as in claim.sql
INSERT INTO {table} (
    namespace, digest, operation_id, tenant, project, subject, endpoint, key_value, key_space,
    request_hash, hash_algorithm, request_sender,
    class, lease_ms, retention_ms, remember_ms, keep_expired_ms, after_loss, ttl_basis, expiry,
    state, fence, attempt, attempts, delivered, created_ms, until_ms, free_ms, changed
)
SELECT
    $1, $2, $4, $5, $6, $7, $8, $9, $10,
    $11, $12, $13,
    $14, $15, $16, $17, $18, $19, $20, $21,
    'running', nextval('{table}_fence'), $22, 1, false, now_ms, now_ms + $15,
    CASE WHEN $19 = 'free' THEN now_ms + $15 END, nextval('{table}_fence')
FROM (
    SELECT coalesce($3::bigint, (extract(epoch FROM clock_timestamp()) * 1000)::bigint) AS now_ms
) AS moment
ON CONFLICT DO NOTHING
RETURNING fence
