"""MariaDB and MySQL: the rows of `backends.rows`; who waits looks, a process at a time."""
