-- The first privilege that the role lacks.
SELECT current_user::text, lower(needed), what
FROM (
    SELECT needed, '{table}' AS what, has_table_privilege('{table}', needed) AS given
    FROM unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) AS needed
    UNION ALL
    SELECT needed, '{table}_document', has_table_privilege('{table}_document', needed)
    FROM unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) AS needed
    UNION ALL
    SELECT 'use', 'the sequence {table}_fence', has_sequence_privilege('{table}_fence', 'USAGE')
    UNION ALL
    SELECT 'run', 'the function {table}_sweep',
        has_function_privilege('{table}_sweep(text, bigint, integer)', 'EXECUTE')
) AS rights
WHERE NOT given
LIMIT 1
