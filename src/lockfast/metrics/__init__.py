"""Event listeners that export metrics and traces: `prometheus` and `otel`.

lockfast never imports them itself; each module imports its client library.
"""

# Seconds, from a free lock in memory to a job that takes minutes, in steps of two or three.
BUCKETS = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0,
)  # fmt: skip
