"""`python -m potluck`: the same as the command `potluck`."""

import sys

from potluck.cli import main

if __name__ == "__main__":
    sys.exit(main())
