UPDATE meta SET latest = max(latest, ?1)
