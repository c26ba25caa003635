INSERT INTO {table}_document (namespace, sheet, name, document) VALUES ($1, $2, $3, $4)
ON CONFLICT (namespace, owner, sheet, name) DO UPDATE SET document = $4
RETURNING true
