-- Ends the claim of the holder of a fence without an outcome: $7 is `released` or
-- `unknown`. Returns no row for a delivery that is due again when it is lost, nor for
-- a repeated settlement, which changes nothing: then the rules decide on the record
-- that is read next.
--
-- $1 namespace  $2, $3 the digest, or its bounds  $4 operation_id, or NULL
-- $5 the moment, or NULL for the server's  $6 fence  $7 state
WITH moment AS MATERIALIZED (
    SELECT coalesce($5::bigint, (extract(epoch FROM clock_timestamp()) * 1000)::bigint) AS now_ms
),
written AS (
    UPDATE {table} AS r SET
        state = $7,
        until_ms = CASE WHEN $7 = 'released' THEN now_ms + r.lease_ms ELSE r.until_ms END,
        free_ms = CASE WHEN $7 = 'released' THEN 0 END,
        due_ms = NULL,
        sweep_ms = CASE WHEN $7 = 'released' THEN now_ms + greatest(r.lease_ms, {grace_ms}) END,
        changed = nextval('{table}_fence')
    FROM moment
    WHERE r.namespace = $1 AND r.digest BETWEEN $2 AND $3 AND r.owner = {table}_owner()
      AND ($4::bytea IS NULL OR r.operation_id = $4)
      AND r.fence = $6 AND r.state IN ('running', 'unknown') AND r.state <> $7
      AND ($7 = 'released' OR NOT r.delivered OR r.after_loss = 'hold')
    RETURNING r.digest, r.awaited
)
SELECT CASE WHEN awaited
    THEN pg_notify('{channel}', $1 || ':' || encode(digest, 'hex')) IS NULL
    ELSE true
END FROM written
