from __future__ import annotations

import subprocess
import sys

import pytest

PLANS = """
import hashlib, sys
import highspy
import numpy as np
import nopad
threads = int(sys.argv[1])
if threads:
    other = highspy.Highs()
    other.setOptionValue("output_flag", False)
    other.setOptionValue("threads", threads)
    other.setOptionValue("parallel", "on")
    other.addVar(0.0, 1.0)
    other.run()
lengths = np.clip(np.round(np.random.default_rng(0).normal(60, 15, 3000)), 5, 160).astype(int)
made = nopad.plan(lengths, 160, depth=3, algorithm="optimal", effort=1)
triplets = nopad.plan(np.random.default_rng(5).integers(250, 500, 99), 1000, algorithm="optimal", effort=2)
assert not [note for note in made.notes + triplets.notes if "gave up" in note], made.notes + triplets.notes
print(made.fingerprint, triplets.fingerprint)
"""


@pytest.fixture(scope="module")
def alone():
    return planned(0)


def planned(threads):
    done = subprocess.run([sys.executable, "-c", PLANS, str(threads)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("threads", [2, 5])
def test_a_library_that_solved_before_with_more_threads_changes_no_plan(alone, threads):
    assert planned(threads) == alone
