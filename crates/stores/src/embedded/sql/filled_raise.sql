UPDATE meta SET filled = ?1, sequence = max(sequence, ?2), latest = max(latest, ?3)
