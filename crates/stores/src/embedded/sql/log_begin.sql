-- A new log begins. Where an earlier one is gone, its numbers are left out.
UPDATE meta SET log = ?1, filled = 0, sequence = iif(sequence = 0, 0, sequence + ?2)
