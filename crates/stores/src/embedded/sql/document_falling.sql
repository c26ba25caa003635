SELECT name, body FROM document WHERE sheet = ?1 AND name < ?2 ORDER BY name DESC LIMIT ?3
