-- Operations, the newest first. Those that do not match by their columns have no record:
-- they are rows of the result so that the reader can stop between any two. The reader
-- then applies changes of state that depend on the time.
SELECT id, {replied}, CASE WHEN
      (?3 IS NULL OR tenant = ?3)
  AND (?4 IS NULL OR project = ?4)
  AND (?5 IS NULL OR endpoint = ?5)
  AND (?6 IS NULL OR key = ?6)
  AND (?7 IS NULL OR state IN (?7, ?8))
  AND created >= ?9 AND created < ?10
  THEN record END
FROM {table}
WHERE id < ?1 AND id > ?2
ORDER BY id DESC
