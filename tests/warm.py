"""A process that has imported what a job needs and forks one child a request: a test pays for no fresh interpreter.

`python warm.py FD SCRIPT ...` calls SCRIPT's `warm(...)`, then serves the socket FD. A request is `fork` with the
arguments of the child, what it has in its environment beside its parent's, its stdout and its stderr; it is answered
by the child's number. Another is `wait` with such a number, answered by the exit code as `subprocess` gives it. A third
is `load` with the names of modules to import. The child calls SCRIPT's `main(*arguments)`.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock, Timer

MOST = 1 << 16  # bytes of a request


class Forked:
    """A child, with as much of `subprocess.Popen` as tests use."""

    def __init__(self, ask: Callable[..., int], arguments: tuple[object, ...], environment: dict[str, object]) -> None:
        self._ask = ask
        (out, theirs), (err, theirs_too) = os.pipe(), os.pipe()
        self.args = list(map(str, arguments))
        child = self.args, {name: str(value) for name, value in environment.items()}
        self.pid = ask("fork", child, fds=[theirs, theirs_too])
        os.close(theirs)
        os.close(theirs_too)
        self.stdout, self.stderr = (os.fdopen(pipe, encoding="utf-8") for pipe in (out, err))
        self.returncode: int | None = None

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        if self.returncode is None:
            self.send_signal(signal.SIGKILL)

    def communicate(self, timeout: float = 600) -> tuple[str, str]:
        """All of both outputs, read at the same time: who is not read would stop. Who takes longer is killed."""
        late = Timer(timeout, self.kill)
        late.start()
        try:
            with self, ThreadPoolExecutor(1) as pool:
                err = pool.submit(self.stderr.read)
                return self.stdout.read(), err.result()
        finally:
            late.cancel()

    def wait(self) -> int:
        if self.returncode is None:
            self.returncode = self._ask("wait", self.pid)
        return self.returncode

    def __enter__(self) -> Forked:
        return self

    def __exit__(self, *_: object) -> None:
        self.stdout.close()
        self.stderr.close()
        self.wait()


class WarmParent:
    """The process that forks; `with WarmParent(script) as start: child = start(*arguments)`."""

    def __init__(self, script: Path, *warm: object) -> None:
        self._socket, theirs = socket.socketpair()
        command = [sys.executable, __file__, str(theirs.fileno()), str(script), *map(str, warm)]
        self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()])
        theirs.close()
        self._lock = Lock()

    def _ask(self, *request: object, fds: list[int] | tuple[()] = ()) -> int:
        with self._lock:
            socket.send_fds(self._socket, [json.dumps(request).encode()], list(fds))
            return int(self._socket.recv(MOST))

    def __call__(self, *arguments: object, **environment: object) -> Forked:
        return Forked(self._ask, arguments, environment)

    def load(self, *modules: str) -> WarmParent:
        """Import what the next children need; only what runs nothing, as threads do not survive a fork."""
        assert self._ask("load", modules) == 1, "more than one thread"
        return self

    def __enter__(self) -> WarmParent:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)  # closing is not enough: a worker that a test forked may hold this end
        self._socket.close()
        self._process.wait()


def serve(ours: socket.socket, main: Callable[..., None]) -> None:
    """Answer until the other end is closed."""
    while True:
        data, fds, *_ = socket.recv_fds(ours, MOST, 2)
        if not data:
            return
        what, argument = json.loads(data)
        if what == "wait":
            answer = os.waitstatus_to_exitcode(os.waitpid(argument, 0)[1])
        elif what == "load":
            for name in argument:
                importlib.import_module(name)
            names = [path.read_text() for path in Path("/proc/self/task").glob("*/comm")]
            answer = sum(not name.startswith("jemalloc") for name in names)  # which sees to its own thread at a fork
        elif not (answer := os.fork()):
            ours.close()
            run(main, *argument, fds)
        for descriptor in fds:
            os.close(descriptor)
        ours.send(str(answer).encode())


def run(main: Callable[..., None], arguments: list[str], environment: dict[str, str], fds: list[int]) -> None:
    """Be the child, to its end."""
    os.environ.update(environment)
    for descriptor, standard in zip(fds, (1, 2), strict=True):
        os.dup2(descriptor, standard)
        os.close(descriptor)
    sys.stdout = os.fdopen(1, "w", closefd=False)  # the parent's may be files, and think that these are
    sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace", closefd=False)
    code: object = 0
    try:
        main(*arguments)
    except SystemExit as stop:
        code = stop.code
    except BaseException:
        traceback.print_exc()
        code = 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 0 if code is None else 1)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    script = runpy.run_path(sys.argv[2])
    script["warm"](*sys.argv[3:])
    serve(socket.socket(fileno=int(sys.argv[1])), script["main"])
