"""`python -m lockfast` is the command `lockfast`."""

import sys

from lockfast.cli.main import main

sys.exit(main())
