-- $1 namespace  $2 the moment, or NULL for the server's  $3 how many at most
SELECT {table}_sweep($1, $2, $3)
