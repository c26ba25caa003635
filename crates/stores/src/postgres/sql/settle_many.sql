-- As settle.sql, for many steps in one statement: $3 to $8 are lists.
--
-- A row finds its step by the position of its digest in the list: a join would compare
-- every row with every step. Of several steps for one key the first counts; the others
-- are repeated as single statements.
WITH held AS MATERIALIZED (
    SELECT r.digest
    FROM {table} AS r
    WHERE r.namespace = $1 AND r.digest = ANY ($3) AND r.owner = {table}_owner()
      AND r.fence = ($4)[array_position($3, r.digest)] AND r.state IN ('running', 'unknown')
    FOR UPDATE OF r SKIP LOCKED
),
written AS (
    UPDATE {table} AS r SET
        state = ($5)[array_position($3, r.digest)],
        completed_ms = now_ms,
        answer = ($6)[array_position($3, r.digest)],
        status = ($7)[array_position($3, r.digest)],
        reply = ($8)[array_position($3, r.digest)],
        {kept},
        changed = nextval('{table}_fence')
    FROM (SELECT coalesce($2::bigint, (extract(epoch FROM clock_timestamp()) * 1000)::bigint) AS now_ms) AS moment
    WHERE r.namespace = $1 AND r.digest = ANY (ARRAY(SELECT digest FROM held)) AND r.owner = {table}_owner()
    RETURNING array_position($3, r.digest)::bigint AS place, r.completed_ms, r.expires_ms, r.digest, r.awaited
)
SELECT place, completed_ms, expires_ms, CASE WHEN awaited
    THEN pg_notify('{channel}', $1 || ':' || encode(digest, 'hex')) IS NULL
    ELSE true
END, {durable} FROM written
