INSERT INTO bucket (family, ends, rows, first) VALUES (?1, ?2, 0, ?2)
