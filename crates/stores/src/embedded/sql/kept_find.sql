SELECT id, replied, record, reply FROM kept_{ends} WHERE prefix = ?1 ORDER BY id DESC
