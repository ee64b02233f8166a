from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nopad.corpus import BadRecord, Record
from nopad.corpus.inputs import InputFile
from nopad.corpus.jsonl import Field, JsonlFile, decode_objects
from nopad.corpus.options import ReaderOptions
from nopad.errors import SourceError

TEXT = Field(name="text", kind="text")
IDS = Field(name="input_ids", kind="ids")


def opened(tmp_path, data: bytes, **options) -> JsonlFile:
    path = tmp_path / "a.jsonl"
    path.write_bytes(data)
    return JsonlFile(InputFile.found(path, "a.jsonl"), **options)


@pytest.fixture
def records(one_by_one):
    def records(source: JsonlFile) -> list[Record | BadRecord]:
        return [record for block in source.blocks() for record in one_by_one(block.records())]

    return records


def reason(line: bytes, field: Field = TEXT) -> str:
    [record] = decode_objects(line, 1, field=field)
    assert isinstance(record, BadRecord)
    return record.reason


@pytest.mark.parametrize(
    ("first", "kind"),
    [
        (b'{"text": "a"}', "text"),
        (b'{"input_ids": [1]}', "ids"),
        (b'{"text": "a", "input_ids": [1]}', "ids"),
        (b'{"text": "a", "input_ids": null}', "text"),
        (b'{"text": null}', "text"),
        (b'{"input_ids": null}', "ids"),
        (b'\xef\xbb\xbf{"text": "a"}', "text"),
        (b'broken\n\n[1]\n{"text": "a"}', "text"),
        (b"broken", None),
        (b"", None),
    ],
)
def test_the_first_object_decides(tmp_path, first, kind):
    assert opened(tmp_path, first + b"\n").kind == kind


def test_neither_field(tmp_path):
    with pytest.raises(SourceError) as caught:
        opened(tmp_path, b'\n{"body": "x", "id": 3}\n')
    assert str(caught.value) == (
        f"{tmp_path}/a.jsonl, line 2: neither 'input_ids' nor 'text' in this object; its keys are \"body\", \"id\"; "
        "choose one with text_field= or ids_field="
    )


def test_a_named_field_is_read_whatever_else_is_there(tmp_path, records):
    source = opened(tmp_path, b'{"input_ids": [1], "body": "x"}\n', options=ReaderOptions(text_field="body"))
    assert source.kind == "text"
    assert records(source) == [Record(line=1, text="x")]


def test_ids_are_read(tmp_path, records):
    [record] = records(opened(tmp_path, b'{"input_ids": [3, 4]}'))
    assert record.ids.tolist() == [3, 4]


@pytest.mark.parametrize("block_bytes", [1, 16, 1 << 20])
def test_empty_lines_count_as_lines_only(tmp_path, block_bytes, records):
    data = b'\n{"text": "a"}\r\n\r\n\n {"text": "b"} \n{"text": "\\u2028c"}'
    source = opened(tmp_path, data, block_bytes=block_bytes)
    assert b"".join(block.data for block in source.blocks()) == data
    assert records(source) == [
        Record(line=2, text="a"),
        Record(line=5, text="b"),
        Record(line=6, text="\u2028c"),
    ]


def test_the_byte_order_mark_is_not_content(tmp_path, records):
    assert records(opened(tmp_path, b'\xef\xbb\xbf{"text": "a"}\n')) == [Record(line=1, text="a")]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b'{"text": "a"', "broken JSON: Expecting ',' delimiter at column 13"),
        (b'{"text": "a', "broken JSON: Unterminated string starting at column 10"),
        (b'{"text": "a"} {"text": "b"}', "broken JSON: Extra data at column 15"),
        (b"   ", "broken JSON: Expecting value at column 4"),
        (b"[" * 100_000, "broken JSON: nested too deeply"),
        (b'{"text": "a", "n": ' + b"9" * 5000 + b"}", "broken JSON: Exceeds the limit"),
        (b'{"text": "\xff"}', "not UTF-8: byte 0xff at offset 10 of the line"),
        (b'["text"]', "not a JSON object but a list"),
        (b'"text"', 'not a JSON object but the string "text"'),
        (b"3", "not a JSON object but 3"),
        (b"{}", "no 'text' in this object; it has no keys"),
        (b'{"Text": "a"}', "no 'text' in this object; its keys are \"Text\""),
        (b'{"text": null}', "'text' is null, not a string"),
        (b'{"text": {"en": "a"}}', "'text' is an object, not a string"),
        (b'{"text": ["a"]}', "'text' is a list, not a string"),
        (b'{"text": 7}', "'text' is 7, not a string"),
        (b'{"text": "a\\ud800"}', "'text' holds a lone surrogate, \\ud800, at character 1"),
    ],
)
def test_bad_text_records(line, expected):
    assert reason(line).startswith(expected)
    assert reason(line) == expected or expected.endswith("limit")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b'{"input_ids": [1, -1]}', "input_ids[1] is -1; ids are integers from 0 to 2147483647"),
        (b'{"input_ids": [1, true]}', "input_ids[1] is true; ids are integers from 0 to 2147483647"),
        (b'{"input_ids": [4294967296]}', "input_ids[0] is 4294967296; ids are integers from 0 to 2147483647"),
        (b'{"input_ids": [NaN]}', "input_ids[0] is NaN; ids are integers from 0 to 2147483647"),
        (b'{"input_ids": [[1]]}', "input_ids[0] is [1]; ids are integers from 0 to 2147483647"),
        (b'{"input_ids": "1 2"}', "'input_ids' is the string \"1 2\", not a list of ids"),
        (b'{"input_ids": null}', "'input_ids' is null, not a list of ids"),
        (b'{"text": "a"}', "no 'input_ids' in this object; its keys are \"text\""),
    ],
)
def test_bad_ids_records(line, expected):
    assert reason(line, IDS) == expected


def test_many_keys_are_not_all_listed():
    line = json.dumps(dict.fromkeys("abcdefghij", 1)).encode()
    assert reason(line).endswith('"g", "h" and 2 more')


def test_bad_lines_do_not_hide_the_others(one_by_one):
    data = b'{"text": "a"}\n{"text": \n{"text": "c"}\n'
    good, bad, also = one_by_one(decode_objects(data, 10, field=TEXT))
    assert (good, also) == (Record(line=10, text="a"), Record(line=12, text="c"))
    assert bad == BadRecord(line=11, reason="broken JSON: Expecting value at column 10")


@pytest.mark.slow
@given(texts=st.lists(st.text(), max_size=10), ascii_only=st.booleans())
def test_any_text_survives(texts, ascii_only, one_by_one):
    texts = [text.encode("utf-8", "ignore").decode() for text in texts]
    data = "".join(json.dumps({"text": text}, ensure_ascii=ascii_only) + "\n" for text in texts).encode()
    assert [record.text for record in one_by_one(decode_objects(data, 1, field=TEXT))] == texts


@given(st.binary(max_size=60))
def test_no_bytes_make_the_decoder_raise(data):
    found = list(decode_objects(data, 1, field=TEXT))
    assert len(found) == sum(line not in (b"", b"\r") for line in data.split(b"\n"))
