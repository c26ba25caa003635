-- `name` is bytes: SQLite promises no order for texts with a NUL in them.
SELECT name, body FROM document WHERE sheet = ?1 AND name >= ?2 ORDER BY name LIMIT ?3
