INSERT INTO {table}_document (namespace, sheet, name, document) VALUES ($1, $2, $3, $4)
ON CONFLICT DO NOTHING
RETURNING true
