"""Run the command line by ``python -m nopad``."""

from nopad.cli import main

if __name__ == "__main__":
    main()
