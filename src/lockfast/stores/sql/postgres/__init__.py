"""PostgreSQL: the SQL backend with wake-ups by LISTEN/NOTIFY."""
