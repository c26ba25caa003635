-- The table {table} of Onceward: version {latest}, as Onceward {program} prints it by
--
--     {command}
--
-- Run it as it is, with `psql -v ON_ERROR_STOP=1 -f FILE` for example, or hand it
-- to your own migration tool, in a transaction or not. It is one statement: all of
-- it is done or nothing. Run again, it makes what is missing and leaves the rest;
-- versions only go forward. Each is noted in {table}_migration.
{place}
