SELECT request FROM reply_{ends} WHERE id = ?1
