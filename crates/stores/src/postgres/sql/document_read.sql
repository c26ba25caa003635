SELECT document FROM {table}_document
WHERE namespace = $1 AND owner = {table}_owner() AND sheet = $2 AND name = $3
