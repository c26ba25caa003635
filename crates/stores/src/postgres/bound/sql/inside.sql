-- Fails with 25P01 outside of a transaction, and has no effect inside: a claim takes a
-- stronger lock on the table anyway. A savepoint would need two statements for the same
-- check, and comparing times does not work: two of one message are equal.
LOCK TABLE ONLY {table} IN ACCESS SHARE MODE
