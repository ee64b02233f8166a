"""What the room itself does: nothing is imported before it is needed, and what is missing is named."""

from __future__ import annotations

import subprocess
import sys

import pytest

import nopad.training
from nopad.errors import MissingExtraError


def test_nothing_heavy_is_imported_before_it_is_used():
    program = "import sys, nopad.training; print({'torch', 'transformers', 'trl', 'lightning'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
    assert dir(nopad.training) == [
        "CountedLR",
        "Lamb",
        "PackedMixin",
        "PackedRewardTrainer",
        "PackedSFTTrainer",
        "PackedTrainer",
        "Scaled",
        "Schedule",
        "decay_groups",
        "factor_of",
        "load_batch",
        "scale_for_packing",
    ]


@pytest.mark.parametrize(
    ("name", "missing", "install"),
    [
        ("Lamb", "torch", "'.[torch]'"),
        ("PackedTrainer", "transformers", "'.[train]'"),
        ("PackedTrainer", "accelerate", "'.[train]'"),
        ("PackedSFTTrainer", "trl", "'.[train]' trl"),
        ("PackedRewardTrainer", "accelerate", "'.[train]' trl"),
    ],
)
def test_what_is_missing_is_named(monkeypatch, name, missing, install):
    for module in ("transformers", "accelerate", *(["trl"] if "trl" in install else [])):
        pytest.importorskip(module)
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(MissingExtraError) as caught:
        getattr(nopad.training, name)
    assert str(caught.value) == f"nopad.training.{name} needs {missing}; in a clone: pip install -e {install}"


def test_other_names_are_no_names():
    with pytest.raises(AttributeError, match=r"module 'nopad\.training' has no attribute 'Nothing'"):
        nopad.training.Nothing  # noqa: B018
