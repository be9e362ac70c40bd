"""MariaDB and MySQL: the SQL store with wake-ups by polling, one statement per process."""
