SELECT reply FROM reply_{ends} WHERE id = ?1
