INSERT INTO document (sheet, name, body) VALUES (?1, ?2, ?3)
ON CONFLICT (sheet, name) DO UPDATE SET body = excluded.body
