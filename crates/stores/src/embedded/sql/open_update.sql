UPDATE live SET state = ?2, record = ?3 WHERE id = ?1
