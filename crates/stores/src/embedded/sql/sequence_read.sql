SELECT sequence FROM meta
