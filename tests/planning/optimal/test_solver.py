from __future__ import annotations

import subprocess
import sys

import highspy
import numpy as np
import pytest

from nopad.planning.optimal import solver
from nopad.planning.optimal.budget import Budget
from nopad.planning.optimal.master import OPTIONS, Master
from nopad.planning.optimal.pricing import Items
from nopad.planning.optimal.rounding import best_fit

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


def test_a_program_that_stalls_is_solved_on_with_perturbation(monkeypatch):
    """Degenerate programs take hundreds of thousands of iterations without it: six seconds where 0.6 are enough."""
    items = Items.of(np.arange(5, 80), np.full(75, 40), 160, None)
    programs = [Master(items), Master(items)]
    optima, options = [], []
    run = solver.run

    def watched(model):
        options.append([model.getOptionValue(name)[1] for name in solver._PERTURBATIONS])
        run(model)

    monkeypatch.setattr(solver, "run", watched)
    for program in programs:
        program.add([*best_fit(items, items.demand), *((item,) for item in range(75))])
        optima.append(program.solve(Budget(9)))
        monkeypatch.setattr(solver, "_STALLED", 3)
        monkeypatch.setattr(solver, "_STALLED_EACH", 0)
    assert optima[0].packs == pytest.approx(optima[1].packs)
    assert options == [[0.0, 0.0], [0.0, 0.0], [1.0, 1.0]]
    model = programs[1]._highs
    assert isinstance(model, highspy.Highs)
    assert [model.getOptionValue(name)[1] for name in solver._PERTURBATIONS] == [
        OPTIONS[n] for n in solver._PERTURBATIONS
    ]


def test_the_entries_of_the_inverse_of_a_basis_are_counted():
    items = Items.of(np.arange(5, 80), np.full(75, 40), 160, None)
    program = Master(items)
    assert solver._filled(program._highs) == 75 / 4  # no inverse yet
    program.add([*best_fit(items, items.demand), *((item,) for item in range(75))])
    program.solve(Budget(9))
    rows = [(2 * sample + 1) * 75 // 10 for sample in range(5)]
    inverse = [np.count_nonzero(program._highs.getBasisInverseRow(row)[1]) for row in rows]
    assert solver._filled(program._highs) == np.mean(inverse)


@pytest.mark.parametrize("effort", [0.0005, 0.002, 0.01, 0.5])
def test_a_program_gets_no_more_iterations_than_its_budget_allows(monkeypatch, effort):
    items = Items.of(np.arange(50, 800), np.full(750, 40), 1600, None)
    program, budget, made = Master(items), Budget(effort), []
    program.add([*best_fit(items, items.demand), *((item,) for item in range(750))])
    run = solver.run

    def watched(model):
        run(model)
        made.append(model.getInfo().simplex_iteration_count)

    monkeypatch.setattr(solver, "run", watched)
    monkeypatch.setattr(solver, "_SLICE", 50)
    solved = program.solve(budget)
    assert (solved is None) == budget.spent()
    assert max(made) <= 50
    before_last = sum(made[:-1]) * solver._ITERATION_STEPS
    assert before_last < effort * 10**9  # each slice but the last one left something of the budget
    assert budget.left > -(2 * 10**7)
