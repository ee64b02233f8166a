from __future__ import annotations

import hashlib
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nopad
from nopad.corpus import CHAIN_START, BadRecord, Block, IterableSource, Record, Source, chain, open_source
from nopad.corpus.records import ids_record, shown, text_record
from nopad.errors import SourceError


def digest(source: Source) -> str:
    value = CHAIN_START
    for block in source.blocks():
        value = chain(value, block)
    return value.hex()


def block(name: str, data: bytes) -> Block:
    return Block(name=name, data=data, decoder=lambda data, line: iter(()))


def test_iterable_source_gives_texts_in_blocks_of_records(one_by_one):
    source = IterableSource(["a", "é", "c"], block_records=2)
    blocks = list(source.blocks())
    assert [json.loads(b.data) for b in blocks] == [["a", "é"], ["c"]]
    assert [list(one_by_one(b.records())) for b in blocks] == [
        [Record(line=1, text="a"), Record(line=2, text="é")],
        [Record(line=3, text="c")],
    ]
    assert source.kind == "text"
    assert source.total_bytes == sum(len(b.data) for b in blocks)
    assert source.inventory() == [("memory", source.total_bytes)]
    assert list(source.blocks()) == blocks


def test_iterable_source_gives_ids_from_lists_and_arrays(one_by_one):
    source = IterableSource([[1, 2], np.array([3], dtype=np.uint16), [np.int64(4)], []])
    [only] = source.blocks()
    assert only.data == b"[[1,2],[3],[4],[]]"
    ids = [record.ids for record in one_by_one(only.records())]
    assert [array.tolist() for array in ids] == [[1, 2], [3], [4], []]
    assert {array.dtype for array in ids} == {np.dtype(np.int32)}
    assert source.kind == "ids"


def test_an_empty_iterable_has_no_blocks_and_no_kind():
    source = IterableSource([])
    assert list(source.blocks()) == []
    assert source.kind is None


def test_mixed_items_are_refused():
    with pytest.raises(SourceError) as caught:
        IterableSource(["a", "b", [1]], name="mine")
    assert str(caught.value) == (
        "mine: record 1 is text and record 3 is ready-made ids; pack them in two separate jobs"
    )


@pytest.mark.parametrize("items", [5, None, len, "ab", b"ab", {"a": 1}])
def test_what_holds_no_items(items):
    kind = type(items).__name__
    with pytest.raises(SourceError, match=f"^memory: {kind}, not a list of texts or of lists of ids$"):
        IterableSource(items)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ([5, -3], "ids[1] is -3; ids are integers from 0 to 2147483647"),
        ([5, 6, 2147483648], "ids[2] is 2147483648; ids are integers from 0 to 2147483647"),
        ([10**60], "ids[0] is " + "1" + "0" * 39 + "...; ids are integers from 0 to 2147483647"),
        ([True], "ids[0] is true; ids are integers from 0 to 2147483647"),
        ([1, 2.0], "ids[1] is 2.0; ids are integers from 0 to 2147483647"),
        ([None], "ids[0] is null; ids are integers from 0 to 2147483647"),
        (["7"], 'ids[0] is "7"; ids are integers from 0 to 2147483647'),
        ([[7]], "ids[0] is [7]; ids are integers from 0 to 2147483647"),
    ],
)
def test_ids_outside_int32_are_bad_with_position_and_value(values, reason):
    assert ids_record(values, 9, "ids") == BadRecord(line=9, reason=reason)


def test_the_largest_and_smallest_id_are_good():
    record = ids_record([0, 2**31 - 1], 1, "ids")
    assert record.ids.tolist() == [0, 2**31 - 1]


@given(st.lists(st.integers(-5, 2**31 + 5) | st.booleans() | st.floats() | st.none(), max_size=20))
def test_ids_are_good_exactly_when_every_one_is(values):
    good = all(type(v) is int and 0 <= v < 2**31 for v in values)
    record = ids_record(values, 1, "ids")
    assert isinstance(record, Record) is good
    if good:
        assert record.ids.tolist() == values


def test_what_json_cannot_hold_is_a_bad_id():
    nested = []
    for _ in range(3000):
        nested = [nested]
    items = [[1], [2, 10**5000], [nested], [3, True]]
    (block,) = IterableSource(items).blocks()
    good, large, deep, flag = block.records()
    assert good.ids.tolist() == [1]
    assert large.reason == 'ids[1] is "an integer of 16,610 bits"; ids are integers from 0 to 2147483647'
    assert deep.reason.startswith('ids[0] is "a list that is nested too deeply"')
    assert flag.reason.startswith("ids[1] is true")
    (block,) = open_source([[1], [10**5000], [nested]]).blocks()
    good, large, deep = block.records()
    assert large.reason.startswith("'input_ids' is a list, not list")
    assert deep.reason.startswith("'input_ids' is a list that is nested too deeply, not list")


@pytest.mark.parametrize("depth", range(960, 1024, 7))
def test_a_deep_value_in_a_file_is_a_bad_record(tmp_path, depth):
    deep = "[" * depth + "]" * depth
    path = tmp_path / "a.jsonl"
    path.write_text(f'{{"input_ids": [1], "label": 1}}\n{{"input_ids": [{deep}], "label": 1}}\n')
    path.write_text(path.read_text() + f'{{"input_ids": [1], "label": {deep}}}\n')
    records = [one for block in open_source(path).blocks() for one in block.records()]
    assert [type(one) is BadRecord for one in records] == [False, True, True]


def test_a_lone_surrogate_is_no_text():
    assert text_record("ab\ud800c", 3, "'text'") == BadRecord(
        line=3, reason="'text' holds a lone surrogate, \\ud800, at character 2"
    )
    assert text_record("ab\U0001f600", 3, "'text'") == Record(line=3, text="ab\U0001f600")


def test_content_is_whichever_is_set():
    assert Record(line=1, text="").content == ""
    assert Record(line=1, ids=np.array([4], np.int32)).content.tolist() == [4]


def test_chain_is_the_documented_hash():
    inner = hashlib.sha256(b"data").digest()
    assert chain(CHAIN_START, block("n", b"data")) == hashlib.sha256(bytes(32) + b"n\0" + inner).digest()


def test_chain_takes_names_that_are_not_unicode():
    assert len(chain(CHAIN_START, block("a\udcff", b""))) == 32


def test_chain_sees_name_data_and_order():
    a, b = block("a", b"1"), block("b", b"2")
    digests = {
        chain(chain(CHAIN_START, first), second)
        for first, second in [(a, b), (b, a), (block("a", b"2"), b), (block("c", b"1"), b), (block("ab", b""), b)]
    }
    assert len(digests) == 5


@given(st.lists(st.text(max_size=5), max_size=12), st.integers(1, 5), st.integers(0, 12))
def test_chain_goes_on_from_any_stored_digest(texts, block_records, k):
    blocks = list(IterableSource(texts, block_records=block_records).blocks())
    k = min(k, len(blocks))
    stored = CHAIN_START
    for one in blocks[:k]:
        stored = chain(stored, one)
    for one in blocks[k:]:
        stored = chain(stored, one)
    assert stored.hex() == digest(IterableSource(texts, block_records=block_records))


def test_the_fingerprint_depends_on_the_blocks():
    assert digest(IterableSource(["a", "b"])) != digest(IterableSource(["a", "b"], block_records=1))


def test_place_names_the_line_but_not_of_a_whole_file():
    one = Block(name="n", data=b"", decoder=lambda data, line: iter(()), path="in/n", whole=True)
    assert one.place(1) == "in/n"
    assert block("n", b"").place(7) == "n, line 7"


def test_a_source_needs_only_blocks():
    class Mine(Source):
        def blocks(self):
            yield from IterableSource(["x"]).blocks()

    mine = Mine()
    assert (mine.kind, mine.total_bytes, mine.ignored, mine.inventory()) == (None, None, (), [])
    with pytest.raises(TypeError):
        Source()


def test_shown_shortens():
    assert shown("x" * 100, 5) == '"xxxx...'


def test_the_repr_says_what_is_read_and_what_is_not(tmp_path):
    for name, text in (("a.jsonl", '{"text": "a", "url": "b"}'), ("b.txt", "x"), ("c.pdf", "x")):
        (tmp_path / name).write_text(text)
    told = repr(nopad.open_source(tmp_path))
    assert told == "FileSource(texts; from a.jsonl and 1 more; columns left out: url; files left out: c.pdf)"
    rows = [{"input_ids": [1, 2], "attention_mask": [1, 0], "label": 1, "words": ["a"]}]
    assert repr(nopad.open_source(rows)) == (
        "DictSource(ready-made ids; carries label; padding is where attention_mask is 0; columns left out: words)"
    )
    assert repr(nopad.open_source({"web": [[1]], "code": [[2]]})) == "MixtureSource(ready-made ids of web, code)"
    assert repr(IterableSource([])) == "IterableSource(texts or ids; from memory)"
