INSERT INTO request (id, body)
SELECT ?2, request FROM kept_{ends} WHERE id = ?1 AND request IS NOT NULL
