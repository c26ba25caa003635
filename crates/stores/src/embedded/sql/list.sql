-- Operations that match by their columns, the newest first. The reader then applies
-- changes of state that depend on the time.
SELECT id, record, {replied} FROM {table}
WHERE id < ?1 AND id > ?2
  AND (?3 IS NULL OR tenant = ?3)
  AND (?4 IS NULL OR project = ?4)
  AND (?5 IS NULL OR endpoint = ?5)
  AND (?6 IS NULL OR key = ?6)
  AND (?7 IS NULL OR state IN (?7, ?8))
  AND created >= ?9 AND created < ?10
ORDER BY id DESC
