-- $3 after this name, or NULL  $4 how many at most
SELECT name, document FROM {table}_document
WHERE namespace = $1 AND owner = {table}_owner() AND sheet = $2
  AND ($3::bytea IS NULL OR name > $3)
ORDER BY name ASC
LIMIT $4
