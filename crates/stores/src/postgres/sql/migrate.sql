DO {tag}
DECLARE
    known integer := 0;
    widened boolean := false;
    columns text;
    emptied text;
    -- The session's own setting; it is restored at the end.
    patience text := current_setting('lock_timeout');
BEGIN
IF current_setting('server_version_num')::integer < 130000 THEN
    RAISE EXCEPTION USING ERRCODE = 'OW001', MESSAGE = format(
        'this is PostgreSQL %s; Onceward needs 13 or newer', current_setting('server_version'));
END IF;

-- Concurrent migrations take turns.
PERFORM set_config('lock_timeout', '60s', true);
PERFORM pg_advisory_xact_lock({lock});
-- A wait for a table blocks all later statements on it, so it is short.
PERFORM set_config('lock_timeout', '5s', true);

IF to_regclass('{table}_migration') IS NOT NULL THEN
    SELECT coalesce(max(version), 0) INTO known FROM {table}_migration;
ELSIF to_regclass('{table}') IS NOT NULL THEN
    RAISE EXCEPTION USING ERRCODE = 'OW001', MESSAGE =
        'a table {table} exists that Onceward did not create; use another name (--table)';
ELSE
    CREATE TABLE {table}_migration (
        version    integer PRIMARY KEY,
        applied_at timestamptz NOT NULL DEFAULT now()
    );
END IF;
IF known > {latest} THEN
    RAISE EXCEPTION USING ERRCODE = 'OW001', MESSAGE = format(
        'the table {table} has version %s, created by a newer Onceward; this program knows versions up to {latest}: use the newer one',
        known);
END IF;
IF known > 0 AND to_regclass('{table}') IS NULL THEN
    RAISE EXCEPTION USING ERRCODE = 'OW001', MESSAGE =
        'the table {table} is missing, although {table}_migration records that it was created; restore it, or drop its remaining objects to start again';
END IF;
{steps}
PERFORM set_config('lock_timeout', patience, true);
END
{tag};
