"""PostgreSQL: the rows of `backends.rows`, and LISTEN/NOTIFY for bells."""
