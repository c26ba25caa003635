SELECT id, prefix FROM kept_{ends} WHERE id > ?1
