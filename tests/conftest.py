"""What several test folders share: the published histograms, exact messages, hypothesis settings, one thread each."""

from __future__ import annotations

import copy
import fcntl
import gc
import hashlib
import json
import os
import re
import shutil
import signal
import threading
from pathlib import Path

# Tests run two at a time (`make test`), and threads that fight for cores are many times slower than one. Set before
# NumPy and PyTorch are imported, and in the environment, so that the processes that tests start are held to it too.
os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"

# A shell starts what runs in its background with Ctrl-C ignored, and processes that tests start would inherit that.
if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st

from nopad import Histogram

PUBLISHED = Path(__file__).resolve().parents[2] / "shared" / "data"
ABSENT = (
    f"the published histograms are not in {PUBLISHED}; they come from github.com/graphcore/examples "
    "tutorials/blogs_code/packedBERT/histograms.py"
)

settings.register_profile("nopad", deadline=None)  # the first call of a kernel compiles it
settings.register_profile("soak", deadline=None, max_examples=2000)  # `make soak`
settings.load_profile("nopad")

# `st.from_type(Histogram)`: few lengths, small counts, often empty or of one length.
st.register_type_strategy(
    Histogram, st.dictionaries(st.integers(1, 40), st.integers(1, 60), max_size=12).map(Histogram.from_counts)
)


_seen = []


def pytest_runtest_logstart(location):
    """Leave what is there before a file's first test, mostly imported modules, out of each garbage collection."""
    if location[0] not in _seen[-1:]:
        _seen.append(location[0])
        gc.collect()
        gc.freeze()


def pytest_collection_modifyitems(items):
    if not PUBLISHED.is_dir():
        for item in items:
            if item.get_closest_marker("shared"):
                item.add_marker(pytest.mark.skip(reason=ABSENT))


@pytest.fixture(scope="session")
def check_twins():
    """A function that holds a compiled loop against the same loop in plain Python: its result, and its arguments."""

    def check(compiled, plain, args) -> None:
        twins = copy.deepcopy(args)
        with np.errstate(over="ignore"):  # words wrap
            assert compiled(*args) == plain(*twins)
        for ours, theirs in zip(args, twins, strict=True):
            np.testing.assert_array_equal(ours, theirs)

    return check


@pytest.fixture(scope="session")
def _shared_folder(tmp_path_factory) -> Path:
    """What all workers of one `pytest -n` see, and no other session."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


@pytest.fixture(scope="session", autouse=True)
def _compiled_once(_shared_folder):
    """Hold a lock while Numba compiles a loop, or loads it: what one worker compiles, the other then loads.

    Without it both would compile, and could write the same file of the cache, which Numba does not guard.
    """
    from numba.core import event

    class OneProcess(event.Listener):
        holders, guard = 0, threading.Lock()

        def on_start(self, event) -> None:
            with self.guard:
                self.holders += 1
                fcntl.flock(file, fcntl.LOCK_EX)

        def on_end(self, event) -> None:
            with self.guard:
                self.holders -= 1
                if not self.holders:
                    fcntl.flock(file, fcntl.LOCK_UN)

    listener = OneProcess()
    with open(_shared_folder / "compiler.lock", "w") as file:
        event.register("numba:compiler_lock", listener)
        yield
        event.unregister("numba:compiler_lock", listener)


@pytest.fixture(scope="session")
def _solved_before():
    """Take the solutions of large least squares problems from `tests.solved`, each with a proof that it is optimal."""
    import scipy.optimize
    from tests import solved

    real = scipy.optimize.nnls

    def nnls(matrix, target, maxiter=None):
        return solved.stored(matrix, target) or real(matrix, target, maxiter=maxiter)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scipy.optimize, "nnls", nnls)
        yield


@pytest.fixture(scope="session")
def wikipedia(_solved_before) -> Histogram:
    """Wikipedia for BERT, capacity 512; only for tests marked `shared`."""
    return Histogram.load(PUBLISHED / "wikipedia_bert_512.json")


@pytest.fixture(scope="session")
def squad(_solved_before) -> Histogram:
    """SQuAD 1.1 for BERT, capacity 384; only for tests marked `shared`."""
    return Histogram.load(PUBLISHED / "squad_1_1_bert_384.json")


@pytest.fixture(scope="session")
def warm_python():
    """`python(*command, **environment)`: a process as `python COMMAND` starts it, from one that has imported a lot.

    What the command imports is loaded once, with `python.load(*modules)`.
    """
    from tests.warm import WarmParent

    with WarmParent(Path(__file__).with_name("warm_python.py")) as python:
        yield python


@pytest.fixture(scope="session")
def on_two_ranks(warm_python):
    """`on_two_ranks(function, *arguments)`: call `function(rank, *arguments)` of a test module in two processes."""

    def call(function, *arguments):
        program = (
            f"import sys; from {function.__module__} import {function.__name__} as call; rank, *rest = sys.argv[1:]"
        )
        warm_python.load(function.__module__)
        ranks = [warm_python("-c", f"{program}; call(int(rank), *rest)", rank, *arguments) for rank in range(2)]
        try:
            errors = [rank.communicate(timeout=240)[1] for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
        assert [rank.returncode for rank in ranks] == [0, 0], errors[0][-2000:]

    return call


@pytest.fixture(scope="session")
def refuses():
    """Expect exactly this error with exactly this message: `with refuses(LengthError, "..."):`."""

    def refuses(error: type[Exception], message: str):
        return pytest.raises(error, match=rf"\A{re.escape(message)}\Z", check=lambda raised: type(raised) is error)

    return refuses


@pytest.fixture(scope="session")
def write_manifest():
    """Write a `nopad.json`, however wrong, with the checksum of itself that it must have."""

    def write(path: Path, document: dict) -> None:
        content = {name: value for name, value in document.items() if name != "sha256"}
        canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
        digest = hashlib.sha256(canonical.encode()).hexdigest()
        path.write_text(json.dumps({**content, "sha256": digest}, indent=2) + "\n")

    return write


@pytest.fixture(scope="session")
def inductor(_shared_folder):
    """PyTorch's compiler to C++, in this process and with files that only the workers of `pytest -n` share.

    Other processes write to the usual ones. The compiler is not asked what vectors of numbers the CPU computes with, as
    the CPU says so itself: for each kind of vector, PyTorch would compile a program and start Python to run it.
    It gives g++ the path of PyTorch without quotes. Where that holds a space, the tests are skipped for what g++ says.
    """
    if not shutil.which("g++"):
        pytest.skip("no C++ compiler")
    import torch
    import torch._inductor.config
    from torch._inductor.exc import InductorError

    settings = {"compile_threads": 1, "cpp.vec_isa_ok": True}
    with pytest.MonkeyPatch.context() as patch, torch._inductor.config.patch(settings):
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(_shared_folder / "inductor"))
        if " " in torch.__file__:
            try:
                torch.compile(torch.sin)(torch.ones(2))
            except InductorError as error:
                said = [line for line in str(error).splitlines() if "cannot find" in line or "No such file" in line]
                pytest.skip(f"PyTorch cannot compile from {torch.__path__[0]!r}: {'; '.join(said)}")
        yield
