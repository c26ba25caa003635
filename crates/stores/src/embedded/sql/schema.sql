-- The tables that are always there. Finished operations live in tables of
-- their own, one per bucket of expiry: kept.sql and reply.sql.

-- Numbers up to `sequence` may have been given as fences and row ids. `latest`
-- is the latest time that was noted; no earlier one is used.
CREATE TABLE meta (sequence INTEGER NOT NULL, latest INTEGER NOT NULL DEFAULT 0);
INSERT INTO meta (sequence) VALUES (0);

-- What operators keep: sheets of named documents.
CREATE TABLE document (
    id    INTEGER PRIMARY KEY,
    sheet TEXT NOT NULL,
    name  BLOB NOT NULL,
    body  BLOB NOT NULL
);
CREATE UNIQUE INDEX document_by_name ON document (sheet, name);

-- Operations that are queued, running, released, unknown or paused. The id is
-- the number of the last change. The columns before `record` repeat what the
-- record says, for listings and for anyone with sqlite3.
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

-- Which buckets there are, how many rows each has, when the first of them is
-- over, and the last row that is in the bucket's index.
CREATE TABLE bucket (
    family TEXT NOT NULL,
    ends   INTEGER NOT NULL,
    rows   INTEGER NOT NULL,
    first  INTEGER NOT NULL,
    sealed INTEGER NOT NULL,
    PRIMARY KEY (family, ends)
) WITHOUT ROWID;
