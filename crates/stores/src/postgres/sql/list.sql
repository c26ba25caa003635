-- A page of operations, the latest first, without their replies. The reader
-- derives states that depend on the present time.
--
--  $1 namespace  $2 the moment, or NULL for the server's  $3 how many at most
--  $4 the cursor, or NULL  $5 tenant  $6 project  $7 endpoint  $8 key_value
--  $9 created since  $10 created before  $11 written states, comma-separated; each NULL for all
SELECT
    coalesce($2::bigint, (extract(epoch FROM clock_timestamp()) * 1000)::bigint) AS now_ms,
    r.changed,
    {light_columns}
FROM {table} AS r
WHERE r.namespace = $1 AND r.owner = (SELECT {table}_owner()) AND r.changed > 0
  AND ($4::bigint IS NULL OR r.changed < $4)
  AND ($5::text IS NULL OR r.tenant = $5)
  AND ($6::text IS NULL OR r.project = $6)
  AND ($7::text IS NULL OR r.endpoint = $7)
  AND ($8::text IS NULL OR r.key_value = $8)
  AND ($9::bigint IS NULL OR r.created_ms >= $9)
  AND ($10::bigint IS NULL OR r.created_ms < $10)
  AND ($11::text IS NULL OR r.state = ANY (string_to_array($11, ',')))
ORDER BY r.changed DESC
LIMIT $3
