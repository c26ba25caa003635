SELECT latest FROM meta
