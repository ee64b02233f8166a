"""One message, two readers: Python names its options, the command line its flags."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import typer

import nopad
from nopad.cli.app import app
from nopad.cli.wording import OPTIONS, as_flags

ROOT = Path(nopad.__file__).parent


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ('choose on_bad_record="skip"', "choose --on-bad-record skip"),
        ('over_long="truncate", "split" or "drop", or more', "--over-long truncate, split or drop, or more"),
        ("special_tokens=False with ids", "--no-special-tokens with ids"),
        ("pack it with index_only=True", "pack it with --index-only"),
        ("(mask_field=None, carry=[])", "(--mask-field none, --carry none)"),
        ("name it with carry=, or not", "name it with --carry, or not"),
        ("my_tokenizer=3, tokenizer==x, tokenizer=abc", "my_tokenizer=3, tokenizer==x, tokenizer=abc"),
    ],
)
def test_options_are_named_as_flags(said, shown):
    assert as_flags(said) == shown


def test_every_option_is_a_flag_of_pack():
    pack = typer.main.get_command(app).commands["pack"]
    flags = {flag for one in pack.params for flag in (*one.opts, *one.secondary_opts)}
    assert {f"--{name.replace('_', '-')}" for name in OPTIONS} <= flags
    assert "--no-special-tokens" in flags


def test_the_library_names_no_flags():
    """Only the command line, and what prints its commands, may."""
    odd = []
    for path in ROOT.rglob("*.py"):
        if path.relative_to(ROOT).parts[0] in ("cli", "report", "study"):
            continue
        tree = ast.parse(path.read_text())
        raised = [node for node in ast.walk(tree) if isinstance(node, ast.Raise) or _warns(node)]
        texts = [one for node in raised for one in ast.walk(node) if isinstance(one, ast.Constant)]
        odd += [f"{path.name}:{one.lineno}" for one in texts if isinstance(one.value, str) and _flagged(one.value)]
    assert odd == []


def _warns(node):
    return isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "warn"


def _flagged(text):
    return any(f"--{name.replace('_', '-')}" in text for name in (*OPTIONS, "no_special_tokens"))
