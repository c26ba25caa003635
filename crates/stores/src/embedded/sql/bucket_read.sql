SELECT ends, rows, first FROM bucket WHERE family = ?1 ORDER BY ends
