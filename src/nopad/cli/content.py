"""`Content`: what the inputs of a command hold: one text, several texts, pairs of texts, or chats; standard input."""

from __future__ import annotations

import atexit
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer

from nopad.cli.options import CORPUS, parse_pairs
from nopad.corpus import open_records
from nopad.corpus.encoders import CHAT_OPTIONS, Chats, Encoder, Fields, TextPairs, has_chat
from nopad.corpus.transformers_tokenizer import load_transformers_tokenizer
from nopad.errors import NopadError, OptionError

__all__ = [
    "Chat",
    "ChatOptions",
    "Content",
    "Suffixes",
    "TextFields",
    "TextPair",
    "encoder_of",
    "from_stdin",
    "remove_spooled",
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
        help=f"Of chats: {', '.join(CHAT_OPTIONS)}. Repeatable.",
        rich_help_panel=CORPUS,
    ),
]
Suffixes = Annotated[
    list[str] | None,
    typer.Option(
        "--suffix",
        metavar=".EXT",
        help="Of folders, read the files with this suffix and no others; one that nopad does not know is text. "
        "Repeatable.",
        rich_help_panel=CORPUS,
    ),
]

_KINDS = ((b"PAR1", ".parquet"), (b"{", ".jsonl"), (b"[", ".json"))  # of standard input, by how it begins


@dataclass(frozen=True, kw_only=True)
class Content:
    """What the options of a command say about the content of the records.

    Attributes:
        fields, pair, chat: the values of ``--text-field``, ``--text-pair`` and ``--chat``. `chat` None: chats are
            recognised by the first record.
        chat_options: the values of ``--chat-option``.
        tokenizer: the value of ``--tokenizer``.
        other: name of an option that states another content, such as ``--ids-field``; "": none is given.
    """

    fields: Sequence[str] = ()
    pair: tuple[str, str] | None = None
    chat: bool | None = None
    chat_options: Mapping[str, Any]
    tokenizer: str | None = None
    other: str = ""

    @classmethod
    def parse(
        cls,
        fields: list[str] | None,
        pair: tuple[str, str] | None,
        chat: bool | None,
        chat_options: list[str] | None,
        tokenizer: str | None,
        others: Mapping[str, Any],
    ) -> Content:
        """Return the `Content` that these options state.

        Args:
            fields: the values of ``--text-field``.
            pair: the value of ``--text-pair``.
            chat: the value of ``--chat``.
            chat_options: the values of ``--chat-option``.
            tokenizer: the value of ``--tokenizer``.
            others: values by name of the options that cannot be combined with chats, pairs or several fields.

        Raises:
            OptionError: options contradict each other.
        """
        made = cls(
            fields=tuple(fields or ()),
            pair=pair,
            chat=chat,
            chat_options=parse_pairs("--chat-option", "last_only=true", chat_options),
            tokenizer=tokenizer,
            other=next((name for name, value in others.items() if value), ""),
        )
        ways = {
            "--text-field": bool(made.fields),
            "--text-pair": pair is not None,
            "--chat": chat is True,
            made.other: bool(made.other) and (len(made.fields) > 1 or pair is not None or chat is True),
        }
        given = [name for name, there in ways.items() if there]
        if len(given) > 1:
            raise OptionError(f"{given[0]} and {given[1]} read the records in two ways; give one of them")
        if len(set(made.fields)) < len(made.fields):
            raise OptionError(f"--text-field names {', '.join(made.fields)}; name each field once")
        return made

    @property
    def field(self) -> str | None:
        """Name of the text field; None: no field is named, or several are."""
        return self.fields[0] if len(self.fields) == 1 else None

    def encoder(self, inputs: Sequence[str], capacity: int, policies: Mapping[str, Any]) -> Encoder | None:
        """Return the encoder for the records of these inputs; None: the records have one field of text or ids.

        `capacity` is the maximum number of tokens in a pack; `policies` are options of `CorpusOptions` by name.

        Raises:
            OptionError: an option has no effect on such records, or chats are given without a tokenizer.
        """
        if len(self.fields) > 1:
            return Fields(self.fields)
        chat = self.chat
        if chat is None and not (self.fields or self.pair or self.other):
            chat = _holds_chats(inputs)
        if self.chat_options and not chat:
            raise OptionError(f"--chat-option {next(iter(self.chat_options))} is of chats, and these are none")
        if not chat and self.pair is None:
            return None
        _check(policies)
        how: dict[str, Any] = {"capacity": capacity, "over_long": policies["over_long"]}
        if self.pair is not None:
            return TextPairs(load_transformers_tokenizer(self.tokenizer), *self.pair, **how)
        if self.tokenizer is None:
            raise OptionError(
                f"{inputs[0]} holds chats; give the --tokenizer of the model that learns them, for its chat template, "
                "or read one field as text: --text-field"
            )
        return Chats(load_transformers_tokenizer(self.tokenizer), **how, options=self.chat_options)


def encoder_of(settings: Mapping[str, Any], capacity: int, tokenizer: str | None) -> Encoder | None:
    """Return the encoder that made a dataset, from its manifest's options `settings`; None: there was none.

    `capacity` is that of the dataset; `tokenizer` is the value of ``--tokenizer``.
    """
    found = settings.get("encoder")
    if found is None:
        return None
    how: dict[str, Any] = {"capacity": capacity, "over_long": settings["over_long"]}
    if found["name"] == "fields":
        return Fields(found["fields"])
    loaded = load_transformers_tokenizer(tokenizer)
    if found["name"] == "pairs":
        return TextPairs(loaded, *found["fields"], **how)
    return Chats(loaded, **how, options=found["options"])


def _check(policies: Mapping[str, Any]) -> None:
    if not policies["special_tokens"]:
        raise OptionError("--no-special-tokens: chats and pairs are made with the tokenizer's own; leave it out")
    if policies["vocab_size"] is not None:
        raise OptionError("--vocab-size is for ready-made ids, and these are texts; leave it out")


def _holds_chats(inputs: Sequence[str]) -> bool:
    """Whether the first record of the first input is a chat; False where it cannot be read, which is found later."""
    given = inputs[0]
    path = given if Path(given).exists() else given.partition("=")[2] or given
    if path.endswith(".npy"):
        return False
    try:
        records = open_records([path])
        return records.kind != "text" and any(map(has_chat, islice(records, 1)))
    except NopadError:
        return False


_spooled: list[Path] = []


@atexit.register
def remove_spooled() -> None:
    """Delete the temporary files of standard input."""
    while _spooled:
        shutil.rmtree(_spooled.pop(), ignore_errors=True)


def from_stdin(inputs: Sequence[str]) -> list[str]:
    """Return the inputs with ``-`` replaced by the path of a temporary file that holds what standard input gave.

    The file is deleted when the process ends.

    Raises:
        OptionError: ``-`` is given twice, or standard input is a terminal.
    """
    places = [at for at, given in enumerate(inputs) if given == "-" or given.endswith("=-")]
    if not places:
        return list(inputs)
    if len(places) > 1:
        raise OptionError("- is standard input, and it can be read once; give it once")
    if sys.stdin is None or sys.stdin.isatty():
        raise OptionError("- is standard input, and nothing is piped into it; give a file, or pipe one in")
    folder = Path(tempfile.mkdtemp(prefix="nopad-"))
    _spooled.append(folder)
    stream = sys.stdin.buffer
    begin = stream.read(1 << 16)
    start = begin.removeprefix(b"\xef\xbb\xbf").lstrip()
    kind = next((suffix for magic, suffix in _KINDS if start.startswith(magic)), ".txt")
    path = folder / f"stdin{kind}"
    with open(path, "wb") as file:
        file.write(begin)
        shutil.copyfileobj(stream, file, 1 << 20)
    name = inputs[places[0]].removesuffix("-")
    return [f"{name}{path}" if at == places[0] else given for at, given in enumerate(inputs)]
