DELETE FROM request WHERE id = ?1
