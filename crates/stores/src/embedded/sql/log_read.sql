SELECT log, filled FROM meta
