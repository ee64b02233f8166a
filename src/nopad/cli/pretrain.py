"""``--pretrain bert``: turn the input documents into pairs for pre-training."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from difflib import get_close_matches
from typing import Annotated, Any, Literal

import typer

from nopad.cli.options import CORPUS, parse_pairs
from nopad.corpus import LengthsFile, PairOptions, PretrainingSource, Source, load_tokenizer
from nopad.corpus.pretraining import options_from_settings
from nopad.errors import OptionError

__all__ = ["Pretrain", "PretrainOptions", "Wrap", "as_packed", "parse_pretrain"]

Wrap = Callable[[Source, int], Source]

Pretrain = Annotated[
    Literal["bert"] | None,
    typer.Option(
        "--pretrain",
        help="Make pairs of sentences of each document, [CLS] A [SEP] B [SEP], with next-sentence labels and masks.",
        rich_help_panel=CORPUS,
    ),
]
_ELSEWHERE = {"over_long": "--over-long", "empty": "--empty", "seed": "--seed"}
_NAMES = [one.name for one in fields(PairOptions) if one.name not in _ELSEWHERE]
PretrainOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--pretrain-option",
        "-P",
        metavar="NAME=VALUE",
        help=f"An option of --pretrain: {', '.join(_NAMES)}. Repeatable. max_length is the capacity by default.",
        rich_help_panel=CORPUS,
    ),
]


def parse_pretrain(
    pretrain: str | None, given: list[str] | None, tokenizer: str | None, policies: Mapping[str, Any], seed: int
) -> Wrap | None:
    """Return a function that turns a source of documents into a source of pairs; None without ``--pretrain``.

    The function is called as ``(source, capacity)``. It raises `OptionError` if the source holds lengths, if pairs may
    be longer than the capacity, or if an option has an invalid value. It also raises an error if the tokenizer cannot
    be loaded, or pairs cannot be made with it.

    Args:
        pretrain: the value of ``--pretrain``; None: not given.
        given: the ``NAME=VALUE`` pairs of ``--pretrain-option``.
        tokenizer: the value of ``--tokenizer``; None: nopad's default tokenizer.
        policies: options of `CorpusOptions`, by name.
        seed: random seed for making pairs.

    Raises:
        OptionError: an entry of `given` is not NAME=VALUE, or repeats a name; `given` is not empty without
            ``--pretrain``; or, with ``--pretrain``, an entry names an unknown option or one with a flag of its own, or
            `policies` has no special tokens, or a vocabulary size.
    """
    options = parse_pairs("--pretrain-option", "copies=5", given)
    if pretrain is None:
        if options:
            raise OptionError(f"--pretrain-option {next(iter(options))} is of --pretrain bert; give both")
        return None
    for name in options:
        if name in _ELSEWHERE:
            raise OptionError(f"--pretrain-option {name}: give it as {_ELSEWHERE[name]}")
        if name not in _NAMES:
            near = "".join(f"; did you mean {one}?" for one in get_close_matches(name, _NAMES, 1))
            raise OptionError(f"--pretrain bert has no option {name!r}{near}; it has {', '.join(_NAMES)}")
    if not policies["special_tokens"]:
        raise OptionError("--no-special-tokens: pairs are made with [CLS] and [SEP]; leave it out")
    if policies["vocab_size"] is not None:
        raise OptionError("--vocab-size is for ready-made ids, and pairs are made of texts; leave it out")
    more = {"over_long": policies["over_long"], "empty": policies["empty"], "seed": seed}

    def wrap(source: Source, capacity: int) -> Source:
        if isinstance(source, LengthsFile):
            raise OptionError(f"--pretrain makes pairs of documents, and {source.path} holds lengths; give the texts")
        made = PairOptions(**{"max_length": capacity, **options, **more})
        if made.max_length > capacity:
            raise OptionError(
                f"pairs of up to {made.max_length} tokens do not fit into packs of {capacity}; give a max_length of at "
                f"most {capacity}, or a larger --capacity"
            )
        return PretrainingSource(source, load_tokenizer(tokenizer), made)

    return wrap


def as_packed(source: Source, options: Mapping[str, Any], tokenizer: str | None) -> Source:
    """Return the source from which a dataset was packed: `source` itself, or a source of pairs made of its documents.

    `options` are those of the dataset's manifest; they say whether pairs were made, and how. `tokenizer` is the value
    of ``--tokenizer``.
    """
    made = options_from_settings(options)
    return source if made is None else PretrainingSource(source, load_tokenizer(tokenizer), made)
