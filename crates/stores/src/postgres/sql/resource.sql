
-- The reference of an operation to a {resource}.
IF NOT EXISTS (
    SELECT FROM pg_attribute
    WHERE attrelid = '{table}'::regclass AND attname = 'resource_{resource}' AND NOT attisdropped
) THEN
    ALTER TABLE {table} ADD COLUMN resource_{resource} {type}
        CONSTRAINT resource_{resource}_fkey REFERENCES {target} ({column}) ON DELETE SET NULL;
    -- Deleting a referenced row must not read all operations.
    CREATE INDEX {name}_resource_{resource} ON {table} (resource_{resource})
        WHERE resource_{resource} IS NOT NULL;
    widened := true;
ELSIF NOT EXISTS (
    SELECT FROM pg_constraint AS c
    JOIN pg_attribute AS ours ON ours.attrelid = c.conrelid AND c.conkey = ARRAY[ours.attnum]
    JOIN pg_attribute AS theirs ON theirs.attrelid = c.confrelid AND c.confkey = ARRAY[theirs.attnum]
    WHERE c.contype = 'f' AND c.conrelid = '{table}'::regclass
      AND ours.attname = 'resource_{resource}'
      AND c.confrelid = {target_text}::regclass AND theirs.attname = {column_text}
) THEN
    RAISE EXCEPTION USING ERRCODE = 'OW001', MESSAGE = format(
        'resource {resource} refers to another column than %s(%s), and cannot be changed; use another name for it',
        {target_text}, {column_text});
END IF;
