"""A cron job that runs on one host at a time, and exits if the previous run is still going.

*/5 * * * *  python cron_job.py
"""

import sys

import lockfast


def build_report() -> None:
    print("building the report")


hold = lockfast.lock("nightly-report", label="cron").try_acquire()
if hold is None:
    sys.exit("the previous run is still going")
with hold:
    build_report()
