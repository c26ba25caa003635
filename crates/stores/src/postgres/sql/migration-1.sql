-- Operations, one row each. Moments are milliseconds since the Unix epoch, as
-- in Onceward's records; {table}_view shows them as timestamps.
CREATE SEQUENCE {table}_fence AS bigint CACHE 1;

-- The owner of the rows that a statement is about. Without row-level security
-- there is one owner, the empty text.
CREATE FUNCTION {table}_owner() RETURNS text LANGUAGE sql STABLE PARALLEL SAFE
AS $$ SELECT ''::text $$;

CREATE TABLE {table} (
    -- Identity. The key itself is not indexed: it may be long, the digest is not.
    namespace       text COLLATE "C" NOT NULL,
    digest          bytea   NOT NULL,
    owner           text COLLATE "C" NOT NULL DEFAULT {table}_owner(),
    -- Begins with the first eight bytes of the digest, by which it is found.
    operation_id    bytea   NOT NULL,
    tenant          text    NOT NULL,
    project         text    NOT NULL,
    subject         text    NOT NULL,
    endpoint        text    NOT NULL,
    key_value       text    NOT NULL,
    key_space       text    NOT NULL,
    -- The request.
    request_hash    bytea   NOT NULL,
    hash_algorithm  text    NOT NULL,
    request_sender  bytea   NOT NULL,
    request         bytea,
    -- The settings of its class, as they were when it was claimed.
    class           text    NOT NULL,
    lease_ms        bigint  NOT NULL,
    retention_ms    bigint  NOT NULL,
    remember_ms     bigint  NOT NULL,
    keep_expired_ms bigint  NOT NULL,
    after_loss      text    NOT NULL,
    ttl_basis       text    NOT NULL,
    expiry          text    NOT NULL,
    -- The state.
    state           text    NOT NULL,
    fence           bigint  NOT NULL,
    attempt         bytea   NOT NULL,
    attempts        integer NOT NULL,
    delivered       boolean NOT NULL,
    created_ms      bigint  NOT NULL,
    until_ms        bigint  NOT NULL,
    completed_ms    bigint,
    touched_ms      bigint,
    -- The answer of the application or the upstream.
    answer          text,
    status          integer,
    reply           bytea,
    -- For queries: when the reply expires, from when the key is free for any
    -- request, when queued work is due, when the row is to be swept, the
    -- position in listings, and whether a request in another process waits.
    expires_ms      bigint,
    free_ms         bigint,
    due_ms          bigint,
    sweep_ms        bigint,
    changed         bigint  NOT NULL,
    awaited         boolean NOT NULL DEFAULT false,
    -- The digest comes first, because it distinguishes rows: a plan that was made
    -- while the table was empty must not scan a whole namespace.
    PRIMARY KEY (digest, namespace, owner)
){partitioned};
{partitions}
-- Each index has a condition, and only the statements that are to use it repeat
-- it: a search for one row must not be planned as a scan of a whole namespace,
-- which the planner takes for small as long as it has never counted the rows.
CREATE INDEX {name}_changed ON {table} (namespace, changed) WHERE changed > 0;
CREATE INDEX {name}_sweep ON {table} (namespace, sweep_ms) WHERE sweep_ms IS NOT NULL;
CREATE INDEX {name}_due ON {table} (namespace, due_ms) WHERE due_ms IS NOT NULL;
CREATE INDEX {name}_open ON {table} (namespace, state, until_ms)
    WHERE state IN ('queued', 'running', 'unknown', 'paused') AND attempts >= 0;

-- Small documents that operators keep: API keys, changed classes, the audit.
CREATE TABLE {table}_document (
    namespace text COLLATE "C" NOT NULL,
    owner     text COLLATE "C" NOT NULL DEFAULT {table}_owner(),
    sheet     text COLLATE "C" NOT NULL,
    name      bytea NOT NULL,
    document  bytea NOT NULL,
    PRIMARY KEY (namespace, owner, sheet, name)
);

-- Reclaims the space of expired operations, one batch at a time, and returns their
-- number. A reply whose key is remembered longer goes first, the row later. It never
-- waits for a row that another transaction has locked. It runs with the rights of the
-- table's owner, so that a role that sees only its own rows sweeps all expired ones;
-- therefore it never accepts a time in the future.
CREATE FUNCTION {table}_sweep(of_namespace text, at_ms bigint, batch integer) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_custom_plan
AS $$
DECLARE
    server_ms bigint := (extract(epoch FROM clock_timestamp()) * 1000)::bigint;
    now_ms bigint := least(coalesce(at_ms, server_ms), server_ms);
    reclaimed bigint;
BEGIN
    -- Selected in a query of its own: otherwise PostgreSQL 13 would select a whole
    -- batch for each partition.
    WITH over AS MATERIALIZED (
        SELECT namespace, digest, owner,
            -- A role that writes rows may write any numbers; they affect only its own rows.
            state IN ('completed', 'failed')
                AND expires_ms::numeric - retention_ms + remember_ms + keep_expired_ms > now_ms AS remembered
        FROM {qualified}
        WHERE namespace = of_namespace AND sweep_ms <= now_ms
        ORDER BY sweep_ms LIMIT batch FOR UPDATE SKIP LOCKED
    ),
    emptied AS (
        UPDATE {qualified} AS r
        SET state = 'expired',
            answer = 'gone',
            reply = NULL,
            -- A delivered request is kept as long as its reply, for redelivery.
            request = CASE WHEN NOT r.delivered THEN r.request END,
            sweep_ms = least(expires_ms::numeric - retention_ms + remember_ms + keep_expired_ms,
                9223372036854775807)
        FROM over
        WHERE over.remembered
          AND r.namespace = over.namespace AND r.digest = over.digest AND r.owner = over.owner
        RETURNING true
    ),
    removed AS (
        DELETE FROM {qualified} AS r
        USING over
        WHERE NOT over.remembered
          AND r.namespace = over.namespace AND r.digest = over.digest AND r.owner = over.owner
        RETURNING true
    )
    SELECT (SELECT count(*) FROM emptied) + (SELECT count(*) FROM removed) INTO reclaimed;
    RETURN reclaimed;
END $$;
REVOKE ALL ON FUNCTION {table}_sweep(text, bigint, integer) FROM PUBLIC;

-- For people. A view reads with the rights of its owner, so it checks by itself
-- whether the present role may see only its own rows.
CREATE VIEW {table}_view WITH (security_barrier) AS
SELECT
    namespace, owner,
    'op_' || encode(operation_id, 'hex') AS operation_id,
    tenant, project, subject, endpoint, key_value,
    CASE
        WHEN state = 'running' AND until_ms <= now_ms AND after_loss = 'hold' THEN 'unknown'
        WHEN state IN ('completed', 'failed') AND expiry = 'strict' AND expires_ms <= now_ms THEN 'expired'
        ELSE state
    END AS state,
    class, fence, attempts, status,
    to_timestamp(created_ms / 1000.0) AS created_at,
    to_timestamp(completed_ms / 1000.0) AS completed_at,
    to_timestamp(expires_ms / 1000.0) AS expires_at
FROM {table}, (SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now_ms) AS clock
WHERE (free_ms IS NULL OR free_ms > now_ms)
  AND (NOT row_security_active('{qualified}'::regclass) OR owner = {table}_owner());
