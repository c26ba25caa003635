-- Counts operations. Finished ones are counted exactly only while there are few; for
-- many the planner's estimate is good enough for a gauge.
--
-- $1 namespace  $2 the moment, or NULL for the server's
WITH moment AS MATERIALIZED (
    SELECT coalesce($2::bigint, (extract(epoch FROM clock_timestamp()) * 1000)::bigint) AS now_ms
),
size AS MATERIALIZED (
    SELECT
        sum(c.reltuples)::bigint AS estimate,
        sum(pg_total_relation_size(c.oid))::bigint AS bytes
    FROM pg_class AS c
    WHERE c.relkind = 'r' AND (c.oid = '{table}'::regclass
        OR c.oid IN (SELECT relid FROM pg_partition_tree('{table}'::regclass)))
),
open AS (
    SELECT
        count(*) FILTER (WHERE r.state = 'running' AND r.until_ms > now_ms) AS running,
        count(*) FILTER (WHERE r.state = 'queued' OR r.state = 'running' AND r.until_ms <= now_ms
            AND r.after_loss = 'free' AND r.delivered) AS queued,
        count(*) FILTER (WHERE r.state = 'unknown' OR r.state = 'running' AND r.until_ms <= now_ms
            AND r.after_loss = 'hold') AS unknown,
        count(*) FILTER (WHERE r.state = 'paused') AS paused
    FROM {table} AS r, moment
    WHERE r.namespace = $1 AND r.owner = (SELECT {table}_owner())
      AND r.state IN ('queued', 'running', 'unknown', 'paused') AND r.attempts >= 0
)
SELECT running, queued, unknown, paused,
    CASE WHEN estimate > 100000 THEN estimate ELSE (
        -- A table that was never analysed has no estimate, and may be large.
        SELECT count(*) FROM (
            SELECT FROM {table} AS r, moment
            WHERE r.namespace = $1 AND r.owner = (SELECT {table}_owner())
              AND (r.free_ms IS NULL OR r.free_ms > now_ms OR r.state = 'released' AND r.until_ms > now_ms)
            LIMIT 100000
        ) AS few
    ) END,
    bytes
FROM open, size
