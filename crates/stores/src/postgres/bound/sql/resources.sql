-- The columns that refer to resources. Asking first costs a statement, but an
-- unknown column would fail the caller's transaction.
SELECT a.attname::text FROM pg_attribute AS a
WHERE a.attrelid = '{table}'::regclass AND NOT a.attisdropped
  AND starts_with(a.attname::text, 'resource_')
