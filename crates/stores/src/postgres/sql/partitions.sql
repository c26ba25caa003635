
IF (SELECT count(*) FROM pg_inherits WHERE inhparent = '{table}'::regclass) <> {count} THEN
    RAISE EXCEPTION USING ERRCODE = 'OW001', MESSAGE = format(
        'the table {table} is there already, with %s partitions and not {count}; it is partitioned when it is made or never: leave --partitions out, or use another name (--table)',
        (SELECT count(*) FROM pg_inherits WHERE inhparent = '{table}'::regclass));
END IF;
