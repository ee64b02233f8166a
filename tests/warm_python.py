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
    """Numba loads much at the first call of a compiled loop, and pyarrow at the first look at an array."""
    sys.path[0] = str(Path(__file__).parents[1])
    import numpy as np

    import nopad

    nopad.open_source([np.arange(3)])
    nopad.plan([3, 4], 8)


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
