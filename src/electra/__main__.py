"""`python -m electra` -> the `electra` command."""

import sys

from electra.cli import main

if __name__ == "__main__":
    sys.exit(main())
