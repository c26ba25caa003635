SELECT count(*) FROM kept_{ends} WHERE over > ?1
