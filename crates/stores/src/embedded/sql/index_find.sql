SELECT entries FROM index_{ends} WHERE id BETWEEN ?1 AND ?2
