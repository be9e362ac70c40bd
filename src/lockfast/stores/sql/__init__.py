"""What the SQL stores share: the law of slots over two tables, without a lock between round trips.

`book` is one name as the law sees it; `backend` the verbs; `pool` and `tasks` the connections of
the two colours. A dialect (`postgres/`, `mysql/`) gives the statements, a link, and an ear.
"""
