"""Run the ``lockfast`` command: ``python -m lockfast``."""

import sys

from lockfast.cli.main import main

sys.exit(main())
