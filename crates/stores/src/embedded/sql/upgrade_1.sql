-- From layout 1 to layout 2.
ALTER TABLE meta ADD COLUMN latest INTEGER NOT NULL DEFAULT 0;

-- The registry: collections of named documents.
CREATE TABLE document (
    id    INTEGER PRIMARY KEY,
    sheet TEXT NOT NULL,
    name  BLOB NOT NULL,
    body  BLOB NOT NULL
);
CREATE UNIQUE INDEX document_by_name ON document (sheet, name);
