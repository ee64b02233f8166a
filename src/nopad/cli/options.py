"""Options that several verbs share, declared once."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from nopad import corpus
from nopad.errors import OptionError
from nopad.planning.conditions import CONDITIONS

__all__ = [
    "AlgorithmOptions",
    "EmptyPolicy",
    "IdsField",
    "OnBadRecord",
    "OverLong",
    "Seed",
    "SpecialTokens",
    "TextField",
    "TextUnit",
    "TokenizerSpec",
    "parse_depth",
    "parse_options",
]


CORPUS = "Corpus"
TokenizerSpec = Annotated[
    str | None,
    typer.Option(
        "--tokenizer",
        "-t",
        metavar="T",
        help="A tokenizer.json, a folder with one, or a hub name. Default: bert-base-uncased's, if installed.",
        rich_help_panel=CORPUS,
    ),
]
OverLong = Annotated[
    corpus.OverLong, typer.Option("--over-long", help="Records above the capacity.", rich_help_panel=CORPUS)
]
EmptyPolicy = Annotated[corpus.Empty, typer.Option("--empty", help="Records without a token.", rich_help_panel=CORPUS)]
OnBadRecord = Annotated[
    corpus.OnBadRecord,
    typer.Option("--on-bad-record", help="Broken JSON, invalid UTF-8, wrong types.", rich_help_panel=CORPUS),
]
SpecialTokens = Annotated[
    bool,
    typer.Option(help="Put the tokenizer's special tokens around each text.", rich_help_panel=CORPUS),
]
TextUnit = Annotated[
    corpus.TextUnit,
    typer.Option("--text-unit", help="One document of a text file: the file, or each line.", rich_help_panel=CORPUS),
]
TextField = Annotated[
    str | None,
    typer.Option(
        "--text-field", metavar="FIELD", help="JSONL field that holds text. Default: 'text'.", rich_help_panel=CORPUS
    ),
]
IdsField = Annotated[
    str | None,
    typer.Option(
        "--ids-field",
        metavar="FIELD",
        help="JSONL field that holds token ids. Default: 'input_ids' where present.",
        rich_help_panel=CORPUS,
    ),
]
Seed = Annotated[
    int,
    typer.Option(
        "--seed", metavar="S", help="Of the random choices: which of equal lengths goes where, and the order of packs."
    ),
]


AlgorithmOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--option",
        "-O",
        metavar="NAME=VALUE",
        help=f"Of the algorithm, or a condition on packs ({', '.join(CONDITIONS)}). Repeatable.",
    ),
]


def parse_options(given: list[str] | None) -> dict[str, Any]:
    """Read ``NAME=VALUE`` pairs; values are JSON, or else plain text.

    Raises:
        OptionError: one has no name or no value, or a name comes twice.
    """
    options: dict[str, Any] = {}
    for text in given or []:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise OptionError(f"--option must be NAME=VALUE, such as pack_multiple=8, got {text!r}")
        if name in options:
            raise OptionError(f"--option {name} is given twice")
        try:
            options[name] = json.loads(value)
        except ValueError:
            options[name] = value
    return options


def parse_depth(text: str | None) -> int | None:
    """Read a depth from the command line: an integer >= 1, or "none" / "max" for unlimited.

    Raises:
        OptionError: it is neither.
    """
    if text is None or text.lower() in ("none", "max", "unlimited"):
        return None
    if not text.isdecimal() or int(text) < 1:
        raise OptionError(f"depth must be an integer >= 1, or none for unlimited, got {text!r}")
    return int(text)
