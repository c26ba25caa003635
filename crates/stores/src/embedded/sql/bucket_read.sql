SELECT ends, rows, first, sealed FROM bucket WHERE family = ?1 ORDER BY ends
