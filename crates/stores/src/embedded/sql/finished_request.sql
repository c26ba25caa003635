SELECT request FROM kept_{ends} WHERE id = ?1
