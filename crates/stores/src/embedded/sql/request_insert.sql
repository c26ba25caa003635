INSERT INTO request (id, body) VALUES (?1, ?2)
