DELETE FROM bucket WHERE family = ?1 AND ends = ?2
