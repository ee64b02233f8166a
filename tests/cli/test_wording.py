"""One message, many readers: Python names its options, each verb its flags or its fields."""

from __future__ import annotations

import ast
import re
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer

import nopad
from nopad.cli.app import app
from nopad.cli.wording import FIELDS, FLAGS, OPTIONS, SETTABLE, worded
from nopad.errors import LengthError

main_module = sys.modules["nopad.cli.app"]  # nopad.cli has an `app` of its own
ROOT = Path(nopad.__file__).parent
OURS = ("cli", "report", "study")  # rooms that know of the command line

# Arguments of functions of Python, which no verb has
PYTHON = {
    "add_pooling_layer",
    "batching",
    "prove",
    "bias",
    "in_features",
    "out_features",
    "static",
    "sparse",
    "prefetch",
    "how",
    "balance",
    "adapt_undecayed",
    "alone",
    "attention_mask",
    "batch_size",
    "average_tokens_across_devices",
    "buffer",
    "causal",
    "collate",
    "exhausted",
    "form",
    "groups",
    "in_order",
    "loss",
    "patience",
    "depth",
    "retry_limit_seconds",
    "seed",
    "shuffle",
    "shuffle_buffer",
    "task",
    "unit",
    "remove_unused_columns",
    "mlm_probability",
    "output",
    "sampler",
    "collate_fn",
    "data_collator",
    "packing",
    "padding_free",
    "accumulate",
    "return_dict",
    "warm_up",
    "train_sampling_strategy",
}


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
        ("give nopad.f(data, empty='skip') or empty='skip'.", "give nopad.f(data, empty='skip') or --empty skip."),
        ("max_squares=12, last='fill'", "max_squares=12, last='fill'"),
    ],
)
def test_options_are_named_as_flags(said, shown):
    assert worded(said, "pack") == shown


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ('choose over_long="truncate" or "drop"', 'choose task.over_long = "truncate" or "drop"'),
        ("(rewriting='expand'), last_only=True,", '(task.rewriting = "expand"), task.last_only = true,'),
        ("such as roles={'bot': 'assistant'}", 'such as task.roles = {bot = "assistant"}'),
        ("(template={'enable_thinking': ...})", "(task.template = {enable_thinking = ...})"),
        ("or read none: negative=None", "or read none: no task.negative"),
        ("gradient_accumulation_steps=4 would", "packing.accumulation = 4 would"),
        ("max_steps=100 are 2.5 epochs", "trainer.max_steps = 100 are 2.5 epochs"),
        ("skip them with empty='skip'", 'skip them with data.empty = "skip"'),
        ('holds it: question="..."', 'holds it: task.question = "..."'),
        ("name them with labels=, such as", "name them with task.labels, such as"),
        ("special_tokens=False", "nopad pack --no-special-tokens"),
        ("PackedLoader(..., groups=2, last='fill')", "PackedLoader(..., groups=2, last='fill')"),
    ],
)
def test_options_are_named_as_fields(said, shown):
    assert worded(said, "train") == shown


@pytest.mark.parametrize(
    ("verb", "said", "shown"),
    [
        ("predict", 'over_long="truncate" or "drop"', "--over-long truncate or drop"),
        ("predict", "prompt='', last_only=True", '--set prompt="", --set last_only=True'),
        ("predict", "roles={'bot': 'assistant'}", "--set roles={'bot': 'assistant'}"),
        ("audit", "ranks=1, accumulation=1", "--ranks 1, --accumulation 1"),
        ("verify", "(tokenizer=) or carry=", "(--tokenizer) or nopad pack --carry"),
        ("", "carry=", "nopad pack --carry"),
    ],
)
def test_each_verb_has_its_own_words(verb, said, shown):
    assert worded(said, verb) == shown


def test_errors_and_warnings_are_worded_for_the_verb(monkeypatch, capsys):
    def fails(*_args, **_options):
        warnings.warn("raise accumulation=2", stacklevel=1)
        raise LengthError('choose over_long="drop"')

    monkeypatch.setattr(main_module, "_command", lambda: SimpleNamespace(main=fails))
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        with pytest.raises(SystemExit):
            main_module.main(["train", "config.toml"])
    said = capsys.readouterr().err
    assert "raise packing.accumulation = 2" in said
    assert 'choose task.over_long = "drop"' in said
    assert "--over-long" not in said


def _commands(command, name=""):
    if not hasattr(command, "commands"):
        return {name: {flag for one in command.params for flag in (*one.opts, *one.secondary_opts)}}
    parts = [_commands(one, f"{name} {verb}".strip()) for verb, one in command.commands.items()]
    return {verb: flags for part in parts for verb, flags in part.items()}


def test_flags_are_those_that_verbs_have():
    commands = _commands(typer.main.get_command(app))
    for verb, names in FLAGS.items():
        assert {f"--{name.replace('_', '-')}" for name in names} <= commands[verb]
    reading = set(FLAGS["pack"])
    for verb, flags in commands.items():
        assert {name for name in reading if f"--{name.replace('_', '-')}" in flags} <= set(FLAGS.get(verb, ())), verb
    assert "--no-special-tokens" in commands["plan"] & commands["pack"]


def test_what_predict_sets_are_options_of_its_tasks():
    from nopad.tasks.registry import options_of, tasks_by_name

    known = {name for task in tasks_by_name().values() for name in options_of(task)}
    assert set(SETTABLE["predict"]) <= known


def test_fields_are_those_of_the_configuration():
    from nopad.planning.conditions import CONDITIONS
    from nopad.planning.registry import HISTOGRAM_ALGORITHMS
    from nopad.tasks.registry import tasks_by_name
    from nopad.training.config import _hints

    of_plans = {*CONDITIONS, *(name for one in HISTOGRAM_ALGORITHMS.values() for name in one.options)}
    tasks = {name for task in tasks_by_name() for name in _hints("task", task)}
    for field in FIELDS.values():
        table, name, *inner = field.split(".")
        if table == "task":
            assert name in tasks, field
        elif inner:
            assert field == "model.config.num_labels" or inner[0] in of_plans
            assert name in _hints(table, None)
        else:
            assert name in _hints(table, None), field


def _messages():
    """Yield every text of the library that may be in a message, with ... where a value goes, and where it stands."""
    for path in sorted(ROOT.rglob("*.py")):
        if path.relative_to(ROOT).parts[0] in OURS:
            continue
        tree = ast.parse(path.read_text())
        docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        parts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
        for node in ast.walk(tree):
            if isinstance(node, ast.JoinedStr):
                said = [one.value if isinstance(one, ast.Constant) else "7" for one in node.values]
                yield "".join(said), f"{path.name}:{node.lineno}"
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and not {id(node)} & (docs | parts):
                yield node.value, f"{path.name}:{node.lineno}"


def test_every_name_that_a_message_may_have_is_known():
    """A new one is either translated, or an argument of Python that no verb has."""
    call = re.compile(r"\w\((?:[^()]|\([^()]*\))*\)")
    name = re.compile(r"(?<![\w.-])([a-z][a-z_]+)=(?!=)")
    found = {(one, where) for text, where in _messages() for one in name.findall(call.sub("", text))}
    names = {one for one, _ in found}
    assert {"over_long", "carry", "max_steps", "text_unit", "last_only", "ranks"} <= names
    unknown = {where: one for one, where in found if one not in PYTHON and one not in OPTIONS}
    assert unknown == {}
    assert PYTHON & set(OPTIONS) == set()


@pytest.mark.parametrize("verb", ["train", *FLAGS])
def test_no_verb_names_a_flag_that_it_does_not_have(verb):
    flags = _commands(typer.main.get_command(app))
    for option in OPTIONS:
        for value in ("", '"a"', "True", "False", "None", "3"):
            said = worded(f"choose {option}={value}, or", verb)
            for pack, flag in re.findall(r"(nopad pack )?(--[a-z-]+)", said):
                assert flag in flags["pack" if pack else verb] or flag.startswith("--no-"), said
            if verb == "train":
                assert option not in FIELDS or FIELDS[option] in said


def test_the_library_names_no_flags():
    """Only the command line, and what prints its commands, may."""
    odd = []
    for path in ROOT.rglob("*.py"):
        if path.relative_to(ROOT).parts[0] in OURS:
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
