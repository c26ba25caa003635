UPDATE bucket SET rows = ?3, first = ?4, sealed = ?5 WHERE family = ?1 AND ends = ?2
