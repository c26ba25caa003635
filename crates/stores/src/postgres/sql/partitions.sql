
IF (SELECT count(*) FROM pg_inherits WHERE inhparent = '{table}'::regclass) <> {count} THEN
    RAISE EXCEPTION USING ERRCODE = 'OW001', MESSAGE = format(
        'the table {table} exists with %s partitions, not {count}; a table can be partitioned only when it is created: omit --partitions, or use another name (--table)',
        (SELECT count(*) FROM pg_inherits WHERE inhparent = '{table}'::regclass));
END IF;
