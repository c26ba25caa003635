
-- An operation refers to at most one resource, of all kinds. When a new operation
-- takes over the row of a key, the reference of the earlier one is cleared.
IF widened THEN
    SELECT
        string_agg(quote_ident(attname), ', ' ORDER BY attname),
        string_agg(format('NEW.%I := NULL;', attname), ' ' ORDER BY attname)
    INTO columns, emptied
    FROM pg_attribute
    WHERE attrelid = '{table}'::regclass AND NOT attisdropped AND starts_with(attname::text, 'resource_');
    IF EXISTS (
        SELECT FROM pg_constraint WHERE conrelid = '{table}'::regclass AND conname = 'one_resource'
    ) THEN
        ALTER TABLE {table} DROP CONSTRAINT one_resource;
    END IF;
    EXECUTE format(
        'ALTER TABLE {table} ADD CONSTRAINT one_resource CHECK (num_nonnulls(%s) <= 1)', columns);
    EXECUTE format(
        'CREATE OR REPLACE FUNCTION {table}_renewed() RETURNS trigger LANGUAGE plpgsql AS %L',
        format('BEGIN %s RETURN NEW; END', emptied));
    IF NOT EXISTS (
        SELECT FROM pg_trigger WHERE tgrelid = '{table}'::regclass AND tgname = 'renewed'
    ) THEN
        CREATE TRIGGER renewed BEFORE UPDATE OF operation_id ON {table}
            FOR EACH ROW WHEN (OLD.operation_id <> NEW.operation_id)
            EXECUTE FUNCTION {table}_renewed();
    END IF;
END IF;
