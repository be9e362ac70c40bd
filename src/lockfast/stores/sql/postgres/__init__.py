"""PostgreSQL: the SQL store with wake-ups by LISTEN/NOTIFY."""
