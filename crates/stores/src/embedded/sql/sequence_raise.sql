UPDATE meta SET sequence = ?1
