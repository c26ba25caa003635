-- All that a schema holds, one line each, in an order that does not depend on
-- when it was made.
SELECT line FROM (
    SELECT format('relation %s %s %s %s', c.relname, c.relkind, c.relrowsecurity, c.relacl) AS line
    FROM pg_class AS c WHERE c.relnamespace = '{schema}'::regnamespace AND c.relkind <> 'i'
    UNION ALL
    SELECT format('column %s.%s %s %s %s %s', c.relname, a.attname,
        format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attcollation::regcollation,
        pg_get_expr(d.adbin, d.adrelid))
    FROM pg_class AS c
    JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
    LEFT JOIN pg_attrdef AS d ON d.adrelid = c.oid AND d.adnum = a.attnum
    WHERE c.relnamespace = '{schema}'::regnamespace AND c.relkind IN ('r', 'p', 'v')
    UNION ALL
    SELECT format('constraint %s.%s %s %s', c.relname, k.conname, pg_get_constraintdef(k.oid), k.convalidated)
    FROM pg_constraint AS k JOIN pg_class AS c ON c.oid = k.conrelid
    WHERE c.relnamespace = '{schema}'::regnamespace
    UNION ALL
    SELECT format('index %s', indexdef) FROM pg_indexes WHERE schemaname = '{schema}'
    UNION ALL
    SELECT format('bounds %s %s', c.relname, pg_get_expr(c.relpartbound, c.oid))
    FROM pg_class AS c WHERE c.relnamespace = '{schema}'::regnamespace AND c.relispartition
    UNION ALL
    SELECT format('function %s %s', replace(pg_get_functiondef(p.oid), E'\n', ' '), p.proacl)
    FROM pg_proc AS p WHERE p.pronamespace = '{schema}'::regnamespace
    UNION ALL
    SELECT format('trigger %s', pg_get_triggerdef(t.oid))
    FROM pg_trigger AS t JOIN pg_class AS c ON c.oid = t.tgrelid
    WHERE c.relnamespace = '{schema}'::regnamespace AND NOT t.tgisinternal
    UNION ALL
    SELECT format('policy %s.%s %s %s %s %s', tablename, policyname, roles, cmd, qual, with_check)
    FROM pg_policies WHERE schemaname = '{schema}'
    UNION ALL
    SELECT format('view %s %s', viewname, replace(definition, E'\n', ' '))
    FROM pg_views WHERE schemaname = '{schema}'
    UNION ALL
    SELECT format('schema %s', nspacl) FROM pg_namespace WHERE nspname = '{schema}'
) AS lines
ORDER BY line COLLATE "C"
