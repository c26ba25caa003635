UPDATE bucket SET rows = ?3, first = ?4 WHERE family = ?1 AND ends = ?2
