SELECT body FROM document WHERE sheet = ?1 AND name = ?2
