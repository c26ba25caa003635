SELECT body FROM request WHERE id = ?1
