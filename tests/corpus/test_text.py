from __future__ import annotations

import pytest

from nopad.corpus import BadRecord, Record
from nopad.corpus.inputs import InputFile
from nopad.corpus.text import TextFile


@pytest.fixture
def texts(one_by_one):
    def texts(tmp_path, data: bytes, **options):
        path = tmp_path / "a.txt"
        path.write_bytes(data)
        source = TextFile(InputFile.found(path, "a.txt"), **options)
        blocks = list(source.blocks())
        assert b"".join(block.data for block in blocks) == data
        assert source.total_bytes == len(data)
        assert source.inventory() == [("a.txt", len(data))]
        return [record for block in blocks for record in one_by_one(block.records())]

    return texts


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"one\r\ntwo\n\n", "one\r\ntwo\n\n"),
        (b"", ""),
        ("\ufeffé\ufeff".encode(), "é\ufeff"),
        ("a\u2028b\x85c".encode(), "a\u2028b\x85c"),
    ],
)
def test_a_file_is_one_document_as_it_is(tmp_path, data, text, texts):
    assert texts(tmp_path, data) == [Record(line=1, text=text)]


def test_a_file_that_is_not_utf8(tmp_path, texts):
    assert texts(tmp_path, b"\xef\xbb\xbfab\nc\xe9d") == [
        BadRecord(line=1, reason="not UTF-8: byte 0xe9 at offset 7 of the file")
    ]


def test_a_file_cut_inside_a_character(tmp_path, texts):
    assert texts(tmp_path, b"ab\xc3") == [BadRecord(line=1, reason="not UTF-8: byte 0xc3 at offset 2 of the file")]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"a\nb\n", ["a", "b"]),
        (b"a\nb", ["a", "b"]),
        (b"a\r\nb\r\n", ["a", "b"]),
        (b"a\r\r\n\n", ["a\r", ""]),
        (b"", []),
        (b"\n", [""]),
        ("\ufeffa\n\ufeffb\n".encode(), ["a", "\ufeffb"]),
        ("a\u2028b\x0bc\x85d\n".encode(), ["a\u2028b\x0bc\x85d"]),
    ],
)
@pytest.mark.parametrize("block_bytes", [1, 3, 1 << 20])
def test_a_line_is_a_document(tmp_path, data, expected, block_bytes, texts):
    records = texts(tmp_path, data, unit="line", block_bytes=block_bytes)
    assert records == [Record(line=i, text=text) for i, text in enumerate(expected, 1)]


def test_a_line_that_is_not_utf8_is_bad_alone(tmp_path, texts):
    assert texts(tmp_path, b"good\nb\xff\nalso\n", unit="line", block_bytes=4) == [
        Record(line=1, text="good"),
        BadRecord(line=2, reason="not UTF-8: byte 0xff at offset 1 of the line"),
        Record(line=3, text="also"),
    ]


def test_a_line_longer_than_the_nominal_block(tmp_path, texts):
    long = b"x" * (5 << 20)
    records = texts(tmp_path, b"a\n" + long + b"\nb\n", unit="line")
    assert [(record.line, len(record.text)) for record in records] == [(1, 1), (2, 5 << 20), (3, 1)]


def test_places_in_messages(tmp_path):
    """A line number says nothing about a document that is a whole file."""
    path = tmp_path / "a.txt"
    path.write_text("a")
    file = InputFile.found(path, "a.txt")
    [whole], [lines] = TextFile(file).blocks(), TextFile(file, unit="line").blocks()
    assert (whole.place(1), lines.place(1)) == (str(path), f"{path}, line 1")
