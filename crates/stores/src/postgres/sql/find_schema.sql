SELECT nspname::text FROM pg_namespace WHERE nspname = $1
