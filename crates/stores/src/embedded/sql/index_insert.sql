INSERT INTO index_{ends} (id, entries) VALUES (?1, ?2)
