"""Options that say what each record of a command's inputs holds, and the encoders for such records.

A record holds one text, several texts, a pair of texts, or a chat.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from nopad.cli.options import CORPUS, parse_pairs
from nopad.corpus import CorpusOptions, open_records
from nopad.corpus.content import Content
from nopad.corpus.encoders import CHAT_OPTIONS, Chats, Encoder, Fields, TextPairs
from nopad.corpus.transformers_tokenizer import load_transformers_tokenizer
from nopad.errors import NopadError, OptionError

__all__ = [
    "Chat",
    "ChatOptions",
    "Suffixes",
    "TextFields",
    "TextPair",
    "content_of",
    "encoder_for",
    "encoder_of",
]

TextFields = Annotated[
    list[str] | None,
    typer.Option(
        "--text-field",
        metavar="FIELD",
        help="Field or column that holds text. Repeatable: several are joined by an empty line. Default: 'text'.",
        rich_help_panel=CORPUS,
    ),
]
TextPair = Annotated[
    tuple[str, str] | None,
    typer.Option(
        "--text-pair",
        metavar="FIELD FIELD",
        help="Two fields as one sequence, with special tokens between them and token types.",
        rich_help_panel=CORPUS,
    ),
]
Chat = Annotated[
    bool | None,
    typer.Option(
        "--chat/--no-chat",
        help="Records are chats: messages, conversations, or prompt and completion; labels are made of what the "
        "assistant says. Default: where such fields are, and no text or ids.",
        rich_help_panel=CORPUS,
        show_default=False,
    ),
]
ChatOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--chat-option",
        metavar="NAME=VALUE",
        help=f"An option for chats: {', '.join(CHAT_OPTIONS)}. Repeatable.",
        rich_help_panel=CORPUS,
    ),
]
Suffixes = Annotated[
    list[str] | None,
    typer.Option(
        "--suffix",
        metavar=".EXT",
        help="In folders, read only files with this suffix, as text if nopad does not know it. Repeatable.",
        rich_help_panel=CORPUS,
    ),
]


def content_of(
    fields: list[str] | None,
    pair: tuple[str, str] | None,
    chat: bool | None,
    chat_options: list[str] | None,
    others: Mapping[str, Any],
) -> Content:
    """Return the `Content` that the options of a command state.

    Args:
        fields: the values of ``--text-field``.
        pair: the value of ``--text-pair``.
        chat: the value of ``--chat``.
        chat_options: the values of ``--chat-option``.
        others: values by name of the options that cannot be combined with chats, pairs or several fields.

    Raises:
        OptionError: options contradict each other, a field is named twice, or a value in `chat_options` is not
            NAME=VALUE or repeats a name.
    """
    return Content(
        fields=tuple(fields or ()),
        pair=pair,
        chat=chat,
        chat_options=parse_pairs("--chat-option", "last_only=true", chat_options),
        other=next((name for name, value in others.items() if value is not None), ""),
    )


def encoder_for(
    content: Content, inputs: Sequence[str], capacity: int, policies: Mapping[str, Any], tokenizer: str | None
) -> Encoder | None:
    """Return the encoder for the records of these inputs; None: one field of each record has its text or ids.

    `capacity` is the maximum number of tokens in a pack; `policies` are options of `CorpusOptions` by name; `tokenizer`
    is the value of ``--tokenizer``.

    Raises:
        OptionError: an option in `policies` is invalid, or cannot be used with chats or pairs; there are options of
            chats, but no chats; chats have no tokenizer; or the first record holds both a text and a chat.
        FormatError, MissingExtraError: the tokenizer cannot be loaded (`load_transformers_tokenizer`).
    """

    def loaded() -> Any:
        return None if content.pair is None and tokenizer is None else load_transformers_tokenizer(tokenizer)

    options = CorpusOptions(capacity=capacity, **policies)
    return content.encoder(lambda: _first_record(inputs), loaded, options, inputs[0])


def encoder_of(settings: Mapping[str, Any], capacity: int, tokenizer: str | None) -> Encoder | None:
    """Return an encoder like the one with which a dataset was packed; None: it was packed without one.

    Args:
        settings: the options in the dataset's manifest.
        capacity: the capacity of the dataset.
        tokenizer: the value of ``--tokenizer``.

    Raises:
        FormatError, MissingExtraError: the tokenizer cannot be loaded (`load_transformers_tokenizer`).
        OptionError: the dataset was packed from chats, and `tokenizer` is None.
    """
    found = settings.get("encoder")
    if found is None:
        return None
    how: dict[str, Any] = {"capacity": capacity, "over_long": settings["over_long"]}
    if found["name"] == "fields":
        return Fields(found["fields"])
    if tokenizer is None and found["name"] != "pairs":
        raise OptionError("it was packed from chats; give the --tokenizer of the packing, for its chat template")
    loaded = load_transformers_tokenizer(tokenizer)
    if found["name"] == "pairs":
        return TextPairs(loaded, *found["fields"], **how)
    return Chats(loaded, **how, options=found["options"])


def _first_record(inputs: Sequence[str]) -> dict[str, Any] | None:
    """Return the first record of the first input; None if the input is text or an .npy file, or has no record.

    The result is also None if the input cannot be read; a later step reports this.
    """
    given = inputs[0]
    path = given if Path(given).exists() else given.partition("=")[2] or given
    if path.endswith(".npy"):
        return None
    try:
        records = open_records([path])
        return None if records.kind == "text" else next(iter(records), None)
    except NopadError:
        return None
