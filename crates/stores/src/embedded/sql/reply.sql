-- Replies that expire by {ends}, and the requests of delivered events, under the ids of
-- their operations.
CREATE TABLE reply_{ends} (
    id      INTEGER PRIMARY KEY,
    reply   BLOB,
    request BLOB
);
