-- Finished operations of which nothing is needed from {ends} on. The prefix is
-- the first eight bytes of the digest; `over` is when the key is forgotten and
-- its trace was shown long enough. `replied` names the bucket of the reply; where
-- it is null, the reply goes at the same time and is here.
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

-- Where the operations with a given prefix lie, thousands at a time: see index.rs.
CREATE TABLE index_{ends} (
    id      INTEGER PRIMARY KEY,
    entries BLOB NOT NULL
);
