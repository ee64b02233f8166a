"""Read ``-`` as standard input: it becomes a temporary file, in the format that the user names or its first bytes show.

Nothing is guessed silently. Input that begins like JSON, Parquet or Arrow is read as that, and raises an error if it is
not. Input that looks like a CSV or TSV file may also be plain text, so it is refused until ``--stdin-format`` says
which it is. Any other input is plain text.
"""

from __future__ import annotations

import atexit
import csv
import io
import re
import shutil
import sys
import tempfile
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Annotated, Literal, get_args

import typer

from nopad.cli.options import CORPUS
from nopad.corpus.finding import MAGIC
from nopad.corpus.squad import begins_as_squad
from nopad.errors import OptionError
from nopad.files import storage_errors
from nopad.notation import from_json

__all__ = ["StdinFormat", "from_stdin", "remove_spooled"]

Format = Literal["text", "jsonl", "json", "csv", "tsv", "parquet", "arrow"]
StdinFormat = Annotated[
    Format | None,
    typer.Option(
        "--stdin-format",
        help="Format of standard input. Default: as its first bytes show; what may be CSV or TSV is refused.",
        rich_help_panel=CORPUS,
    ),
]

_LOOKED_AT = 1 << 16  # bytes
_ROWS = 20  # most lines that are compared with the first one
_NAME = re.compile(r"[^\n.!?]{1,64}")  # what the name of a column may be; a sentence does not match
_TEXT = "text"  # the usual name of a column of texts; a file with no other column has no commas
_spooled: list[Path] = []


@atexit.register
def remove_spooled() -> None:
    """Delete the temporary files of standard input."""
    while _spooled:
        shutil.rmtree(_spooled.pop(), ignore_errors=True)


def from_stdin(inputs: Sequence[str], form: Format | None = None) -> list[str]:
    """Return the inputs with ``-`` replaced by the path of a temporary file that holds the bytes of standard input.

    ``NAME=-`` becomes ``NAME=PATH``. The file is deleted when the process ends.

    Args:
        inputs: the inputs of a command.
        form: format of standard input; None: the first bytes decide.

    Raises:
        OptionError: ``-`` is given twice, or standard input is closed or a terminal; or `form` is None and the input
            may be CSV or TSV, or `form` is given and ``-`` is not.
        StorageError: the temporary file cannot be written.
    """
    places = [at for at, given in enumerate(inputs) if given == "-" or given.endswith("=-")]
    if not places:
        if form is not None:
            raise OptionError(f"--stdin-format {form} is of standard input, and no input is -; leave it out, or give -")
        return list(inputs)
    if len(places) > 1:
        raise OptionError("- is standard input, and it can be read once; give it once")
    if sys.stdin is None or sys.stdin.isatty():
        raise OptionError("- is standard input, and nothing is piped into it; give a file, or pipe one in")
    stream = sys.stdin.buffer
    begin = stream.read(_LOOKED_AT)
    suffix = _suffix(begin) if form is None else f".{'txt' if form == 'text' else form}"
    with storage_errors("copying standard input to", Path(tempfile.gettempdir())):
        folder = Path(tempfile.mkdtemp(prefix="nopad-"))
        _spooled.append(folder)
        path = folder / f"stdin{suffix}"
        with open(path, "wb") as file:
            file.write(begin)
            shutil.copyfileobj(stream, file, 1 << 20)
    name = inputs[places[0]].removesuffix("-")
    return [f"{name}{path}" if at == places[0] else given for at, given in enumerate(inputs)]


def _suffix(begin: bytes) -> str:
    """Return the file suffix for the format of input that begins with the bytes `begin`.

    Raises:
        OptionError: the input may be CSV or TSV.

    >>> _suffix(b'{"text": "yes"}'), _suffix(b"PAR1..."), _suffix(b"It is red.")
    ('.jsonl', '.parquet', '.txt')
    """
    for magic, suffix in MAGIC.items():
        if begin.startswith(magic) and suffix.removeprefix(".") in get_args(Format):
            return suffix
    text = begin.decode("utf-8-sig", "replace")
    if text.lstrip().startswith(("{", "[")):
        return ".json" if text.lstrip().startswith("[") or _is_one(begin) else ".jsonl"
    for form, sign in (("tsv", "\t"), ("csv", ",")):
        if _is_table(text, sign, whole=len(begin) < _LOOKED_AT):
            names = text.splitlines()[0][:60]
            raise OptionError(
                f"- begins with {names!r}, as a {form.upper()} file with these columns does; say which it is: "
                f"--stdin-format {form} or --stdin-format text"
            )
    return ".txt"


def _is_one(begin: bytes) -> bool:
    """Return whether input that begins with these bytes is one JSON object, and not one object per line.

    It is one if it begins as a SQuAD file does, or if `begin` is a whole object that takes several lines or has a key
    "histogram".
    """
    if begins_as_squad(begin):
        return True
    begin = begin.removeprefix(b"\xef\xbb\xbf").strip()
    try:
        found = from_json(begin)
    except ValueError:
        return False
    return "histogram" in found or b"\n" in begin


def _is_table(text: str, sign: str, *, whole: bool) -> bool:
    """Return whether a text may be a table: names of columns, and then rows with as many cells.

    Names of columns are distinct, have 1 to 64 characters, and no full stop, ``!`` or ``?``. At most 20 rows after the
    first are looked at. A first line of one cell counts only if it is "text"; then the next rows are not looked at.

    Args:
        text: the beginning of the input.
        sign: what separates cells.
        whole: whether `text` is the whole input; if False, its last line may be cut, and is not looked at.
    """
    rows: list[list[str]] = []
    try:
        rows.extend(islice(csv.reader(io.StringIO(text), delimiter=sign), _ROWS + 2))
    except csv.Error:
        if len(rows) <= _ROWS:
            return False
        rows.append([])  # beyond those that are looked at
    rows = [row for row in (rows if whole else rows[:-1])[: _ROWS + 1] if row]
    if not rows:
        return False
    names = [name.strip() for name in rows[0]]
    if names == [_TEXT]:
        return True
    known = len(set(names)) == len(names) and all(_NAME.fullmatch(name) for name in names)
    return len(rows) > 1 and len(names) > 1 and known and all(len(row) == len(names) for row in rows)
