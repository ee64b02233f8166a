"""The command line of nopad, when it is started by ``python -m nopad``."""

from nopad.cli import main

if __name__ == "__main__":
    main()
