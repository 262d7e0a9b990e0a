"""`python -m meshkit`: the command line."""

import sys

from meshkit.cli import main

if __name__ == "__main__":
    sys.exit(main())
