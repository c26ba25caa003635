-- The tables of every store. Finished operations are in tables of their own, one per
-- bucket of expiry: finished.sql and reply.sql.

-- Numbers up to `sequence` may have been used as fences and row ids. `latest` is the
-- latest time that was recorded: the clock never starts before it. `log` is the
-- identity of the commit log; everything up to its batch `filled` is in this file.
-- A file that never had a log has -1.
CREATE TABLE meta (
    sequence INTEGER NOT NULL,
    latest   INTEGER NOT NULL DEFAULT 0,
    log      BLOB,
    filled   INTEGER NOT NULL DEFAULT 0
);
INSERT INTO meta (sequence, filled) VALUES (0, -1);

-- The registry: collections of named documents.
CREATE TABLE document (
    id    INTEGER PRIMARY KEY,
    sheet TEXT NOT NULL,
    name  BLOB NOT NULL,
    body  BLOB NOT NULL
);
CREATE UNIQUE INDEX document_by_name ON document (sheet, name);

-- Operations that are queued, running, released, unknown or paused. The id is
-- the number of the last change. The columns before `record` repeat
-- fields of the record, for listings and for reading with sqlite3.
CREATE TABLE live (
    id       INTEGER PRIMARY KEY,
    prefix   INTEGER NOT NULL,
    tenant   TEXT NOT NULL,
    project  TEXT NOT NULL,
    endpoint TEXT NOT NULL,
    key      TEXT NOT NULL,
    state    TEXT NOT NULL,
    created  INTEGER NOT NULL,
    request  INTEGER,
    record   BLOB NOT NULL
);

-- The requests of operations that the gateway delivers itself.
CREATE TABLE request (
    id   INTEGER PRIMARY KEY,
    body BLOB NOT NULL
);

-- The buckets: the number of rows of each, when its first row is over, and the last
-- row that is in its index.
CREATE TABLE bucket (
    family TEXT NOT NULL,
    ends   INTEGER NOT NULL,
    rows   INTEGER NOT NULL,
    first  INTEGER NOT NULL,
    sealed INTEGER NOT NULL,
    PRIMARY KEY (family, ends)
) WITHOUT ROWID;
