-- The table {table} of Onceward: version {latest}, as Onceward {program} prints it by
--
--     {command}
--
-- Run it as it is, for example with `psql -v ON_ERROR_STOP=1 -f FILE`, or give it to
-- your own migration tool, in a transaction or not. It is one statement, which takes
-- effect as a whole or not at all. A repeated run creates only the missing objects.
-- Versions only go forward; each is recorded in {table}_migration.
{place}
