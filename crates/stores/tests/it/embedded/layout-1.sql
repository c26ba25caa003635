-- The tables that are always there. Finished operations live in tables of
-- their own, one per bucket of expiry: kept.sql and reply.sql.

-- Numbers up to `sequence` may have been given as fences and row ids.
CREATE TABLE meta (sequence INTEGER NOT NULL);
INSERT INTO meta (sequence) VALUES (0);

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

-- Finished operations whose keys are forgotten by 1700089823232. The prefix is the
-- first eight bytes of the digest; `over` is when the key is forgotten. `replied`
-- names the bucket of the reply; where it is null, the reply goes at the same
-- time and is here.
CREATE TABLE kept_1700089823232 (
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
CREATE TABLE index_1700089823232 (
    id      INTEGER PRIMARY KEY,
    entries BLOB NOT NULL
);

UPDATE meta SET sequence = 65536;
INSERT INTO bucket (family, ends, rows, first, sealed) VALUES ('kept', 1700089823232, 1, 1700086400000, 0);
INSERT INTO kept_1700089823232
VALUES (
    2, 2786153558135014823, '_local', '_local', 'payments.create', 'key-1', 'completed',
    1700000000000, 1700086400000, NULL,
    X'0126aa67e6425405a7000000000000000126aa67e6425405a7ca7f070826ca04d723e7b7c381d804b3abc671f378b9abbb000000065f6c6f63616c000000065f6c6f63616c0300000009616e6f6e796d6f75730000000f7061796d656e74732e637265617465000000056b65792d310026aa67e6425405a7ca7f070826ca04d723e7b7c381d804b3abc671f378b9abbb070707070707070707070707070707070000000b696e746572616374697665000000000000ea600000000005265c000000000005265c00000200000000000000010000000000000000000000010000000000000001000000018bcfe568000000018bcfe652600000018bcfe568000100c96e8cd6e7',
    X'0100c9000000010000000c636f6e74656e742d747970650000000a746578742f706c61696e0000000100000007636865636b656400000002ff000000000e70616964203120706169642031203e2fde2a',
    NULL
);

-- "Once".
PRAGMA application_id = 1332634469;
PRAGMA user_version = 1;
