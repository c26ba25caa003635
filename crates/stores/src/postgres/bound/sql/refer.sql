-- Sets the resource that an operation refers to. The id is a text, and is converted to
-- the type of the column.
--
-- $1 namespace  $2 digest  $3 fence  $4 the resource's id
UPDATE {table} AS r SET {others}
    {column} = (jsonb_populate_record(NULL::{table}, jsonb_build_object('{column}', $4::text))).{column}
WHERE r.namespace = $1 AND r.digest = $2 AND r.owner = {table}_owner()
  AND r.fence = $3 AND r.state IN ('running', 'unknown')
RETURNING true
