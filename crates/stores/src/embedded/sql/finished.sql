-- Finished operations that are no longer needed from {ends} on. `prefix` is the first
-- eight bytes of the digest; `over` is the time from which neither key nor trace is
-- kept. `replied` is the bucket of the reply; where it is null, the reply expires with
-- the row and is stored here.
CREATE TABLE kept_{ends} (
    id       INTEGER PRIMARY KEY,
    prefix   INTEGER NOT NULL,
    tenant   TEXT NOT NULL,
    project  TEXT NOT NULL,
    endpoint TEXT NOT NULL,
    key      TEXT NOT NULL,
    state    TEXT NOT NULL,
    created  INTEGER NOT NULL,
    over     INTEGER NOT NULL,
    replied  INTEGER,
    record   BLOB NOT NULL,
    reply    BLOB,
    request  BLOB
);

-- The row ids of the operations by prefix, thousands per row: see index.rs.
CREATE TABLE index_{ends} (
    id      INTEGER PRIMARY KEY,
    entries BLOB NOT NULL
);
