"""Options that several commands share, and functions that parse them."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from nopad import corpus
from nopad.errors import OptionError
from nopad.notation import from_json
from nopad.options import MAX_LENGTH, parse_integer
from nopad.planning.conditions import CONDITIONS

__all__ = [
    "AlgorithmOptions",
    "Carry",
    "EmptyPolicy",
    "Even",
    "Force",
    "IdsField",
    "MaskField",
    "OnBadRecord",
    "OverLong",
    "Overwrite",
    "PadId",
    "PlannedOverLong",
    "Seed",
    "SpecialTokens",
    "TextField",
    "TextUnit",
    "TokenizerSpec",
    "Validation",
    "VocabSize",
    "parse_depth",
    "parse_options",
    "parse_pairs",
    "parse_policies",
    "parse_reader",
    "parse_share",
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
    corpus.OverLong,
    typer.Option("--over-long", help="What happens to records above the capacity.", rich_help_panel=CORPUS),
]
PlannedOverLong = Annotated[
    corpus.OverLong | None,
    typer.Option(
        "--over-long",
        help="What happens to records above the capacity. Default: they are counted, and left out of the plan.",
        rich_help_panel=CORPUS,
    ),
]
EmptyPolicy = Annotated[
    corpus.Empty, typer.Option("--empty", help="What happens to records without a token.", rich_help_panel=CORPUS)
]
OnBadRecord = Annotated[
    corpus.OnBadRecord,
    typer.Option(
        "--on-bad-record",
        help="What happens to bad records: broken JSON, invalid UTF-8, wrong types.",
        rich_help_panel=CORPUS,
    ),
]
SpecialTokens = Annotated[
    bool,
    typer.Option(help="Put the tokenizer's special tokens around each text.", rich_help_panel=CORPUS),
]
TextUnit = Annotated[
    corpus.TextUnit,
    typer.Option(
        "--text-unit",
        help="One document of a text file: the file, each line, or each paragraph.",
        rich_help_panel=CORPUS,
    ),
]
TextField = Annotated[
    str | None,
    typer.Option(
        "--text-field",
        metavar="FIELD",
        help="Field or column that holds text. Default: 'text'.",
        rich_help_panel=CORPUS,
    ),
]
IdsField = Annotated[
    str | None,
    typer.Option(
        "--ids-field",
        metavar="FIELD",
        help="Field or column that holds token ids. Default: 'input_ids' where present.",
        rich_help_panel=CORPUS,
    ),
]
Carry = Annotated[
    list[str] | None,
    typer.Option(
        "--carry",
        metavar="COLUMN",
        help="A further column to pack, or none. Repeatable. Default: with ids all that can be packed, with text "
        "a label that is a number.",
        rich_help_panel=CORPUS,
    ),
]
MaskField = Annotated[
    str | None,
    typer.Option(
        "--mask-field",
        metavar="FIELD",
        help="Field or column that is 0 at padding, or none. Default: 'attention_mask' where present.",
        rich_help_panel=CORPUS,
    ),
]
PadId = Annotated[
    int | None,
    typer.Option("--pad-id", metavar="ID", help="Cut this id off both ends of ready-made ids.", rich_help_panel=CORPUS),
]
VocabSize = Annotated[
    int | None,
    typer.Option("--vocab-size", metavar="N", help="Ready-made ids of N or above are bad.", rich_help_panel=CORPUS),
]
Validation = Annotated[
    str | None,
    typer.Option(
        "--validation",
        metavar="SHARE",
        help="Hold out this share of the records, such as 1% or 0.01, as a dataset of their own.",
        rich_help_panel=CORPUS,
    ),
]
Seed = Annotated[
    int,
    typer.Option(
        "--seed",
        metavar="S",
        help="Random seed of the order of packs, and of which of several equal lengths goes where.",
    ),
]


AlgorithmOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--option",
        "-O",
        metavar="NAME=VALUE",
        help=f"An option of the algorithm, or a condition on packs ({', '.join(CONDITIONS)}). Repeatable.",
    ),
]


Force = Annotated[
    bool,
    typer.Option(
        "--force",
        help="Start over: replace what nopad has written into the output folder, once the new output is whole.",
        show_default=False,
    ),
]
Overwrite = Annotated[  # read by StrictCommand
    bool, typer.Option("--force", help="Replace an output file that is there.", show_default=False)
]
Even = Annotated[
    bool, typer.Option("--even", help=f"Short for -O even=true: {CONDITIONS['even'].help}.", show_default=False)
]


def parse_options(given: list[str] | None, even: bool = False) -> dict[str, Any]:
    """Return the values in the ``NAME=VALUE`` pairs of ``--option``, by name.

    If `even` is True (``--even``), the result also has "even" with the value True.

    Raises:
        OptionError: a pair has no name or no ``=``; a name occurs twice; or `even` is True and a pair is named "even".
    """
    return parse_pairs("--option", "pack_multiple=8", [*(given or []), *(["even=true"] if even else [])])


def parse_pairs(option: str, example: str, given: list[str] | None) -> dict[str, Any]:
    """Return the values in the ``NAME=VALUE`` pairs of a repeatable option, by name.

    A value is read as JSON, or as Python's ``None``, ``True`` or ``False``; any other value is a text. `option` (the
    flag) and `example` (a pair such as ``scale=20``) are for error messages.

    Raises:
        OptionError: a pair has no name or no ``=``, or a name occurs twice.

    >>> parse_pairs("--set", "scale=20", ["scale=20", "prompt=query: ", "skip=null"])
    {'scale': 20, 'prompt': 'query: ', 'skip': None}
    """
    options: dict[str, Any] = {}
    for text in given or []:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise OptionError(f"{option} must be NAME=VALUE, such as {example}, got {text!r}")
        if name in options:
            raise OptionError(f"{option} {name} is given twice")
        try:
            options[name] = from_json({"None": "null", "True": "true", "False": "false"}.get(value, value))
        except ValueError:  # also an integer of thousands of digits
            options[name] = value
    return options


def parse_reader(
    text_unit: corpus.TextUnit,
    text_field: str | None,
    ids_field: str | None,
    carry: list[str] | None,
    mask_field: str | None,
    pad_id: int | None,
    suffixes: list[str] | None = None,
    *,
    find_labels: bool = False,
) -> corpus.ReaderOptions:
    """Return the `ReaderOptions` that a command's options describe; each argument is the field with the same name.

    For `carry` and `mask_field`, None means "auto", and the name "none" means no column. A suffix that does not begin
    with a dot gets one in front.

    Raises:
        OptionError: `carry` has "none" together with other names, an option has an invalid value, or two options
            contradict each other.
    """
    names = carry or []
    if "none" in names and len(names) > 1:
        raise OptionError(f"--carry none stands alone, and here with {', '.join(n for n in names if n != 'none')}")
    return corpus.ReaderOptions(
        text_unit=text_unit,
        text_field=text_field,
        ids_field=ids_field,
        carry="auto" if not names else () if names == ["none"] else names,
        mask_field="auto" if mask_field is None else None if mask_field == "none" else mask_field,
        pad_id=pad_id,
        suffixes=[one if one.startswith(".") else f".{one}" for one in suffixes or ()],
        find_labels=find_labels,
    )


def parse_policies(
    special_tokens: bool,
    over_long: corpus.OverLong,
    empty: corpus.Empty,
    on_bad_record: corpus.OnBadRecord,
    vocab_size: int | None,
) -> dict[str, Any]:
    """Return a dict of the arguments by name: all options of `CorpusOptions`, except its capacity."""
    return {
        "special_tokens": special_tokens,
        "over_long": over_long,
        "empty": empty,
        "on_bad_record": on_bad_record,
        "vocab_size": vocab_size,
    }


def parse_share(text: str | None) -> float:
    """Return a share such as ``1%`` or ``0.01`` as a number; None gives 0.

    Raises:
        OptionError: the text is not a number, with or without ``%``.

    >>> parse_share("1%"), parse_share("0.01"), parse_share(None)
    (0.01, 0.01, 0.0)
    """
    if text is None:
        return 0.0
    try:
        return float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        raise OptionError(f"--validation must be a share such as 1% or 0.01, got {text!r}") from None


def parse_depth(text: str | None) -> int | None:
    """Parse a depth, an integer >= 1; return None (no limit) for "none", "max", "unlimited" or None.

    Raises:
        OptionError: the text is not a depth.
    """
    if text is None or text.lower() in ("none", "max", "unlimited"):
        return None
    depth = parse_integer(text)
    if depth is None:
        raise OptionError(f"depth must be an integer from 1 to {MAX_LENGTH}, or none for unlimited, got {text!r}")
    return depth
