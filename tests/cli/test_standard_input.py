"""Which format standard input has, by how it begins: nothing is read as text that may be something else."""

from __future__ import annotations

import csv
import errno
import io
import json
import random
import shutil
import tempfile

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from nopad.cli.standard_input import _LOOKED_AT, _suffix
from nopad.errors import OptionError

NAMES = st.from_regex(r"[a-z_ ]{1,12}", fullmatch=True)
CELLS = st.text(st.characters(codec="utf-8", exclude_characters="\r\0"), max_size=20)


@st.composite
def tables(draw):
    names = draw(st.lists(NAMES, min_size=2, max_size=4, unique_by=str.strip).filter(lambda all: all[0].strip()))
    rows = draw(st.lists(st.tuples(*(CELLS for _ in names)), min_size=1, max_size=30))
    return names, rows


@pytest.mark.parametrize("sign", [",", "\t"])
@given(table=tables())
def test_a_table_that_a_program_wrote_is_seen(sign, table):
    names, rows = table
    names = [name if name.strip() else f"x{name}" for name in names]
    file = io.StringIO()
    csv.writer(file, delimiter=sign).writerows([names, *rows])
    with pytest.raises(OptionError, match=f"--stdin-format {'csv' if sign == ',' else 'tsv'} or --stdin-format text"):
        _suffix(file.getvalue().encode())


def test_a_long_table_is_seen_by_its_beginning():
    lines = ["text,label", *(f'"{"it is, " * random.Random(n).randint(1, 900)}",{n}' for n in range(40))]
    begin = "\n".join(lines).encode()[:_LOOKED_AT]
    assert len(begin) == _LOOKED_AT
    with pytest.raises(OptionError, match="- begins with 'text,label', as a CSV file with these columns does"):
        _suffix(begin)


@pytest.mark.parametrize("rows", range(18, 25))
@pytest.mark.parametrize("cut", [b"x", b'"x', b"x,0,0", b"x\ry"])
def test_the_last_line_is_not_looked_at_if_it_may_be_cut(rows, cut):
    each = (_LOOKED_AT - 2000) // rows
    begin = b"text,label\n" + (b"x" * (each - 3) + b",1\n") * rows
    begin += cut + b"x" * (_LOOKED_AT - len(begin) - len(cut))
    if rows < 20 and b"\r" in cut:
        return  # no row that csv reads
    with pytest.raises(OptionError, match="- begins with 'text,label', as a CSV file with these columns does"):
        _suffix(begin)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "It is red, and so on.\nYes.\n",
        "Dear all, hello.\nYes, it is.\n",
        "one\ntwo\n",
        "one line, with a comma",
        "a, b\nc, d, e\n",
        "a,a\nb,b\n",
        "a,\nb,\n",
    ],
)
def test_text_stays_text(text):
    assert _suffix(text.encode()) == ".txt"


def test_one_column_of_texts_is_a_table_by_its_name():
    with pytest.raises(OptionError, match="begins with 'text'"):
        _suffix(b"text\nit is red\n")


def test_other_formats_are_known_by_their_first_bytes():
    table = pa.table({"text": ["yes"]})
    for suffix, write in ((".parquet", parquet.write_table), (".arrow", _arrow)):
        file = io.BytesIO()
        write(table, file)
        assert _suffix(file.getvalue()) == suffix
    records = [{"text": "yes, it is"}]
    assert _suffix(json.dumps(records).encode()) == ".json"
    assert _suffix(b"\xef\xbb\xbf \n" + json.dumps(records[0]).encode()) == ".jsonl"
    assert _suffix(b'{"text": "a"}\n{"text": "b"}\n') == ".jsonl"
    assert _suffix(b'{"a":' + b"[" * 60_000) == ".jsonl"
    for one in ({"histogram": [1]}, {"version": "1.1", "data": [{"title": "a", "paragraphs": []}]}):
        for indent in (None, 1):
            assert _suffix(json.dumps(one, indent=indent).encode()) == ".json"


def _arrow(table, file):
    with pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)


def test_a_full_disk_is_named(call, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"one\ntwo\n")))
    monkeypatch.setattr(shutil, "copyfileobj", full)
    ran = call("plan", "-", "-c", 16, "-t", "words.json")
    assert (ran.code, ran.error().partition(" (")[0]) == (
        3,
        f"no space left while copying standard input to {tempfile.gettempdir()}",
    )
