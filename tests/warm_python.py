"""What a `WarmParent` calls to be Python: its children run programs as `python PROGRAM`, `-m` or `-c` would.

Only that the repository's root is on the path in place of the current folder.
"""

from __future__ import annotations

import atexit
import runpy
import sys
import threading
from pathlib import Path


def warm() -> None:
    """Nothing is loaded before it is asked for."""
    sys.path[0] = str(Path(__file__).parents[1])


def main(program: str, *arguments: str) -> None:
    try:
        execute(program, *arguments)
    finally:  # what an interpreter does at its end
        threading._shutdown()
        atexit._run_exitfuncs()


def execute(program: str, *arguments: str) -> None:
    sys.argv = [program, *arguments]
    if program == "-m":
        sys.argv = list(arguments)
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    elif program == "-c":
        sys.argv = [program, *arguments[1:]]
        exec(compile(arguments[0], "<string>", "exec"), {"__name__": "__main__"})
    else:
        sys.path[0] = str(Path(program).parent)
        runpy.run_path(program, run_name="__main__")
