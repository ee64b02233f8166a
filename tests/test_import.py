from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
HEAVY = {"torch", "pyarrow", "numba", "llvmlite", "tokenizers", "rich", "typer", "datasets", "scipy", "pandas"}


def modules_after(code: str) -> set[str]:
    """What a fresh interpreter has imported after running `code`, warnings being errors."""
    program = f"import json, sys\n{code}\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout))


@pytest.mark.parametrize(
    "code",
    [
        "import nopad",
        "import nopad; nopad.plan([5, 3, 4], 8, algorithm='ffd').problems()",
        "import nopad; nopad.PackedBatch.from_sequences([[7, 8, 9], [1, 2]], nopad.Rows(4)).as_grain()",
        "import nopad; str(nopad.Histogram.from_lengths([1]) + nopad.Histogram.from_lengths([2]))",
    ],
)
def test_nothing_heavy_is_imported(code):
    loaded = modules_after(code)
    assert "nopad.planning.front" in loaded  # the names below are spelled as in sys.modules
    assert loaded & HEAVY == set()


def test_the_command_line_starts_without_what_it_does_not_need_yet():
    loaded = modules_after("import nopad.cli.app")
    assert loaded & {"torch", "numba", "llvmlite", "tokenizers", "datasets", "scipy", "pandas", "transformers"} == set()


def test_only_the_packages_of_planning_are_opened():
    opened = {name.split(".")[1] for name in modules_after("import nopad") if name.startswith("nopad.")}
    ground = {
        "arrow",
        "assignment",
        "errors",
        "files",
        "histogram",
        "notation",
        "options",
        "packs",
        "properties",
        "random",
        "wording",
    }
    assert opened == {*ground, "planning"}


def test_packages_that_documents_name_need_no_import_of_their_own():
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    named = {one for page in pages for one in re.findall(r"\bnopad\.([a-z]+)\.\w", page.read_text())}
    named = {one for one in named if (ROOT / "src/nopad" / one).is_dir()}
    assert {"losses", "loading", "model", "tasks"} <= named
    modules_after(f"import nopad; [getattr(nopad, name) for name in {sorted(named, reverse=True)}]")
    modules_after("import nopad; collate = nopad.loading.causal")


def test_the_metadata_of_packages_are_read_only_where_a_version_is_told():
    code = "import nopad; made = nopad.plan([5, 3, 4], 8, depth=3, algorithm={!r})"
    assert "importlib.metadata" not in modules_after(code.format("ffd")) - modules_after("import numpy")
    assert "importlib.metadata" in modules_after(code.format("nnlshp"))


def test_packing_adds_only_the_compiled_loops():
    loaded = modules_after("import nopad; nopad.pack([5, 3, 4], 8)")
    assert loaded & HEAVY == {"numba", "llvmlite", "scipy"}  # numba imports scipy's top where it is installed
    assert "scipy.optimize" not in loaded
    assert "highspy" not in loaded  # the heuristics meet the bound here
    assert "nopad.store" not in loaded
    assert "nopad.corpus" not in loaded


WITHOUT = """
import sys, nopad.training
sys.modules |= dict.fromkeys(sys.argv[1:])
from nopad.errors import MissingExtraError
names = [(nopad, name) for name in (*nopad.__all__, *sorted(nopad._PACKAGES))]
for place, name in [*names, *((nopad.training, name) for name in nopad.training.__all__)]:
    try:
        getattr(place, name)
    except MissingExtraError as error:
        print(f"{place.__name__}.{name}: {error}")
"""
OF_MODELS = {"PackRunner", "audit", "audit_samples", "audit_step", "packed", "unpacked"}
OF_TRAINERS = {"PackedMixin", "PackedRewardTrainer", "PackedSFTTrainer", "PackedTrainer"}


@pytest.mark.parametrize("hidden", [("torch", "transformers", "safetensors"), ("transformers",), ("accelerate",)])
def test_a_public_name_without_its_extra_says_how_to_install_it(hidden):
    """Every lazy name works, or raises nopad's own error: any other error ends the program here."""
    for name in {"torch", "transformers", "accelerate"} - {*hidden}:
        pytest.importorskip(name)
    program = [sys.executable, "-c", WITHOUT, *hidden]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    told = dict(line.split(": ", 1) for line in done.stdout.splitlines())
    need = {f"nopad.training.{name}" for name in OF_TRAINERS}
    if "transformers" in hidden:
        need |= {f"nopad.{name}" for name in (*OF_MODELS, "auditing", "model", "tasks")}
    assert need <= set(told)
    assert {name: text for name, text in told.items() if "; in a clone: pip install -e '.[" not in text} == {}
    assert all(f"needs {hidden[0]};" in told[name] for name in need)
