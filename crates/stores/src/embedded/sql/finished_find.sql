SELECT replied, record, reply FROM kept_{ends} WHERE id = ?1
