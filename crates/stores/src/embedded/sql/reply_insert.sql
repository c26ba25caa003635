INSERT INTO reply_{ends} (id, reply, request) VALUES (?1, ?2, ?3)
