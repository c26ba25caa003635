
-- An operation is about one thing at most, of all that were ever named.
IF widened THEN
    SELECT string_agg(quote_ident(attname), ', ' ORDER BY attname) INTO columns
    FROM pg_attribute
    WHERE attrelid = '{table}'::regclass AND NOT attisdropped AND starts_with(attname::text, 'resource_');
    IF EXISTS (
        SELECT FROM pg_constraint WHERE conrelid = '{table}'::regclass AND conname = 'one_resource'
    ) THEN
        ALTER TABLE {table} DROP CONSTRAINT one_resource;
    END IF;
    EXECUTE format(
        'ALTER TABLE {table} ADD CONSTRAINT one_resource CHECK (num_nonnulls(%s) <= 1)', columns);
END IF;
