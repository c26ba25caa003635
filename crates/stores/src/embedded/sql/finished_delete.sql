DELETE FROM kept_{ends} WHERE id = ?1
