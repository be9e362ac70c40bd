"""MariaDB and MySQL: the SQL backend with wake-ups by polling, one statement per process."""
