INSERT INTO bucket (family, ends, rows, first, sealed) VALUES (?1, ?2, 0, ?2, 0)
