-- An error (25P01) outside of a transaction, and nothing inside: a claim takes
-- a stronger lock on the table anyway. A savepoint would tell the same by two
-- statements, and times cannot tell at all: two of one message are equal.
LOCK TABLE ONLY {table} IN ACCESS SHARE MODE
