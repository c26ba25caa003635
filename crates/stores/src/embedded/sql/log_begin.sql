-- A new log begins. Where there was one before, which is gone, its numbers are left out.
UPDATE meta SET log = ?1, filled = 0, sequence = iif(filled < 0, 0, sequence + ?2)
