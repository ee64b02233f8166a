"""Records of every kind of input: the same dicts, in input order, from any record on; what is bad is named."""

from __future__ import annotations

import csv
import gzip
import json
import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.tasks import templates

from nopad.corpus import Records, json_array, open_records, open_source
from nopad.corpus.encoders import Chats, Fields
from nopad.corpus.runs import ROWS, as_json
from nopad.errors import OptionError, RecordError, SourceError

TIMES = pa.array([1, 2, 3]).cast(pa.time64("ns"))
COUNT = 2345
RECORDS = [{"text": f'text {n}, “quoted” "{n}"', "label": n % 3, "score": n / 4} for n in range(COUNT)]


@pytest.mark.parametrize(
    "column",
    [
        TIMES,
        pa.ListArray.from_arrays([0, 1, 3], TIMES),
        pa.StructArray.from_arrays([TIMES], ["a"]),
        pa.ListArray.from_arrays([0, 3], pa.StructArray.from_arrays([TIMES], ["a"])),
        pa.MapArray.from_arrays([0, 1, 3], ["a", "b", "c"], TIMES),
    ],
    ids=lambda column: str(column.type),
)
def test_times_of_day_keep_their_nanoseconds(column, tmp_path):
    pq.write_table(pa.table({"t": column}), tmp_path / "a.parquet")
    records = list(open_records(tmp_path / "a.parquet"))
    assert pa.array([record["t"] for record in records], column.type).equals(column)


def test_times_of_day_in_dictionaries_keep_their_nanoseconds(tmp_path):
    table = pa.table({"t": pa.StructArray.from_arrays([TIMES.dictionary_encode()], ["a"])})
    with pa.ipc.new_file(tmp_path / "a.arrow", table.schema) as file:
        file.write_table(table)
    assert [record["t"]["a"].value for record in open_records(tmp_path / "a.arrow")] == [1, 2, 3]


def test_chats_may_have_times_of_day(tmp_path):
    """Each message was a scalar of Arrow, in which no chat was found, so that all were bad records."""
    told = {"role": ["user", "assistant", "user"], "content": ["why", "so", None], "at": TIMES}
    messages = pa.StructArray.from_arrays([pa.array(column) for column in told.values()], [*told])
    pq.write_table(pa.table({"messages": pa.ListArray.from_arrays([0, 2], messages)}), tmp_path / "a.parquet")
    [record] = open_records(tmp_path / "a.parquet")
    assert [(type(one), one["content"], one["at"].value) for one in record["messages"]] == [
        (dict, "why", 1),
        (dict, "so", 2),
    ]
    chats = Chats(templates.tokenizer(templates.PLAIN), capacity=64, over_long="error")
    [run] = [run for block in open_source(tmp_path / "a.parquet", encoder=chats).blocks() for run in block.records()]
    assert isinstance(run, Records)


def test_an_encoder_makes_one_entry_of_each_record():
    class Odd(Fields):
        def encode(self, records):
            made, counts = super().encode(records)
            return made * 2 if records[0]["text"] == "a" else made[1:], counts

    for text, says in (("a", "made 4 entries of 2 records"), ("b", "made 1 entries of 2 records")):
        [block] = open_source([{"text": text}] * 2, encoder=Odd(["text"])).blocks()
        with pytest.raises(ValueError, match=rf"Odd\.encode {says}; make one of each"):
            [*block.records()]


def write(folder, kind):
    path = folder / f"records.{kind}"
    lines = "".join(json.dumps(one) + "\n" for one in RECORDS).encode()
    if kind in ("jsonl", "json"):
        path.write_bytes(lines)
    elif kind == "jsonl.gz":
        path.write_bytes(gzip.compress(lines))
    elif kind == "jsonl.zst":
        with pa.CompressedOutputStream(str(path), "zstd") as file:
            file.write(lines)
    elif kind == "array.json":
        path.write_text(json.dumps(RECORDS, indent=1))
    elif kind == "csv":
        with open(path, "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, RECORDS[0])
            writer.writeheader()
            writer.writerows(RECORDS)
    elif kind == "tsv":
        rows = ["\t".join(map(str, one.values())) for one in RECORDS]
        path.write_text("\n".join(["\t".join(RECORDS[0]), *rows]) + "\n")
    elif kind == "parquet":
        pq.write_table(pa.Table.from_pylist(RECORDS), path, row_group_size=700)
    elif kind == "arrow":
        table = pa.Table.from_pylist(RECORDS)
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
            writer.write_table(table, max_chunksize=300)
    return path


KINDS = ["jsonl", "json", "jsonl.gz", "jsonl.zst", "array.json", "csv", "tsv", "parquet", "arrow"]


@pytest.mark.parametrize("kind", KINDS)
def test_records_of_a_file_from_any_record_on(tmp_path, kind):
    stream = open_records(write(tmp_path, kind))
    assert list(stream) == RECORDS
    assert stream.count() == COUNT
    for after in (0, 1, 999, 1000, 1001, COUNT - 1, COUNT):
        assert list(stream.read(after=after)) == RECORDS[after:]
    with pytest.raises(SourceError, match=r"there are 2,345 records, .* after 2,346"):
        list(stream.read(after=COUNT + 1))


@pytest.mark.parametrize("kind", KINDS)
def test_the_fingerprint_is_that_of_the_content(tmp_path, kind):
    path = write(tmp_path, kind)
    before = open_records(path).fingerprint()
    os.utime(path, (1, 1))
    assert open_records(path).fingerprint() == before
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    assert open_records(path).fingerprint() != before


def test_objects_of_python_and_datasets(tmp_path):
    import datasets

    dataset = datasets.Dataset.from_list(RECORDS)
    dataset.save_to_disk(str(tmp_path / "saved"))
    streams = [
        open_records(RECORDS),
        open_records(lambda: iter(RECORDS)),
        open_records(dataset),
        open_records(tmp_path / "saved"),
        open_records(dataset.to_iterable_dataset()),
    ]
    for stream in streams:
        assert list(stream) == list(stream.read()) == RECORDS
        assert list(stream.read(after=1003)) == RECORDS[1003:]
    assert streams[0].fingerprint() == streams[1].fingerprint()
    assert open_records(RECORDS[1:]).fingerprint() != streams[0].fingerprint()
    chosen = dataset.select([5, 3]).with_format("numpy", columns=["label"])
    assert list(open_records(chosen)) == [{"label": 2}, {"label": 0}]


@pytest.mark.parametrize(
    "given", [{"strings": ["a"]}, {"text_unit": "file"}, {"paths": True}, {"on_bad_record": "skip"}], ids=str
)
def test_a_stream_that_is_opened_takes_no_other_arguments(given):
    stream = open_records([{"a": 1}])
    assert open_records(stream, strings=[], text_unit="line", paths=False, on_bad_record="error") is stream
    with pytest.raises(
        OptionError, match=rf"a RecordStream is given, which is opened already, with {next(iter(given))}="
    ):
        open_records(stream, **given)


def test_a_record_that_json_cannot_hold_is_a_bad_one():
    nested = []
    for _ in range(3000):
        nested = [nested]
    made = json.loads(as_json([{"a": 1}, {"a": 10**5000}, {"a": nested}, {"a": 2}]))
    assert (made[0], made[3]) == ({"a": 1}, {"a": 2})
    assert made[1][0].startswith("a value cannot be written as JSON: Exceeds the limit (4300 digits)")
    assert made[2] == ["a value cannot be written as JSON: nested too deeply"]


def test_the_data_of_equal_records_are_equal_in_every_process():
    """The order of a set depends on the process, and so do addresses in memory: no job could be resumed."""

    def tool(city: str):
        """Tell the weather."""

    [made] = json.loads(as_json([{"set": {"c", "b", "a"}, "object": object(), "function": tool}]))
    assert made["set"] == ["'a'", "'b'", "'c'"]
    assert made["object"] == "<object object>"
    assert "tool>" in made["function"]
    assert "Tell the weather." in made["function"]
    assert " at 0x" not in made["function"]


def test_the_data_of_functions_differ_with_their_signature():
    """Of which transformers makes the JSON of a tool."""

    def made(kind):
        def tool(city):
            """Tell the weather."""

        tool.__annotations__["city"] = kind
        return as_json([{"tool": tool}])

    assert made(str) == made(str) != made(int)
    assert as_json([{"bytes": b"load at 0x10"}]) != as_json([{"bytes": b"load at 0x20"}])


def test_an_iterator_is_read_once():
    stream = open_records(iter(RECORDS[:3]))
    assert (stream.read_again(), open_records(RECORDS).read_again()) == (False, True)
    assert list(stream) == RECORDS[:3]
    with pytest.raises(SourceError, match="can be read once"):
        list(stream)


@pytest.mark.parametrize("first", ["fingerprint", "count", "read"])
@pytest.mark.parametrize("then", ["fingerprint", "count", "read"])
def test_whatever_reads_an_iterator_reads_it_once(first, then):
    """After the fingerprint, there were no records, and no error."""

    def use(stream, name):
        return list(stream.read()) if name == "read" else getattr(stream, name)()

    stream = open_records(iter(RECORDS[:3]))
    assert use(stream, first) == use(open_records(RECORDS[:3]), first)
    with pytest.raises(SourceError, match="an iterator can be read once; give a function that returns a new one"):
        use(stream, then)


def test_memory_is_bounded_by_a_run():
    pulled = 0

    def endless():
        nonlocal pulled
        while True:
            pulled += 1
            yield {"text": "a"}

    records = iter(open_records(endless))
    assert [next(records) for _ in range(5)] == [{"text": "a"}] * 5
    assert pulled <= 1000


def test_several_files_and_folders_come_one_after_the_other(tmp_path):
    for name, part in (("b.jsonl", RECORDS[:4]), ("a.jsonl", RECORDS[4:9])):
        (tmp_path / name).write_text("".join(json.dumps(one) + "\n\n" for one in part))
    both = open_records([tmp_path / "b.jsonl", tmp_path / "a.jsonl"])
    assert list(both) == RECORDS[:9]
    assert list(both.read(after=6)) == RECORDS[6:9]
    assert list(open_records(tmp_path)) == RECORDS[4:9] + RECORDS[:4]
    assert open_records(tmp_path).fingerprint() != both.fingerprint()
    assert both.inventory() == [(name, (tmp_path / name).stat().st_size) for name in ("b.jsonl", "a.jsonl")]


def test_kinds_are_not_mixed(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n')
    (tmp_path / "b.csv").write_text("text\nb\n")
    with pytest.raises(SourceError, match=r"a.jsonl is jsonl and .*b.csv is csv; give files of one kind"):
        open_records(tmp_path)


def test_text_is_a_record_for_each_line(tmp_path):
    (tmp_path / "a.txt").write_bytes("\ufeffone\r\n\ntwo".encode())
    assert list(open_records(tmp_path / "a.txt")) == [{"text": "one"}, {"text": ""}, {"text": "two"}]
    (tmp_path / "b.txt").write_bytes(b"")
    assert list(open_records(tmp_path / "b.txt")) == []


def test_numbers_in_csv(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("id,zip,n,mixed,empty\n1,007,1.5,1,\n2,1,,x,\n")
    assert list(open_records(path)) == [
        {"id": 1, "zip": "007", "n": 1.5, "mixed": "1", "empty": ""},
        {"id": 2, "zip": "1", "n": None, "mixed": "x", "empty": ""},
    ]
    assert next(iter(open_records(path, strings=["id"])))["id"] == "1"
    rows = ["n", *map(str, range(1000)), "2.5", "what"]
    path.write_text("\n".join(rows))
    records = iter(open_records(path))
    assert [next(records)["n"] for _ in range(1001)] == [*range(1000), 2.5]
    with pytest.raises(RecordError, match=r"a.csv, line 1003: n is .what., and the column's first cells are numbers"):
        next(records)
    assert list(open_records(path, strings=("n",)))[-1] == {"n": "what"}
    assert open_records(path).settings() != open_records(path, strings=("n",)).settings()


def test_cells_over_several_lines(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text('text,n\n"a\n\n""b""",1\n\nlast,2\nmore,3,4\n')
    records = iter(open_records(path))
    assert [next(records) for _ in range(2)] == [{"text": 'a\n\n"b"', "n": 1}, {"text": "last", "n": 2}]
    with pytest.raises(RecordError, match=r"line 7: 3 cells, and the first line names 2 columns"):
        next(records)


@pytest.mark.parametrize(
    ("name", "content", "good", "message"),
    [
        ("a.jsonl", b'{"a": 1}\n{"a": \n', 1, r"a.jsonl, line 2: broken JSON"),
        ("a.jsonl", b'{"a": 1}\n\n[1]\n', 1, r"a.jsonl, line 3: not a JSON object but a list"),
        ("a.jsonl", b'{"a": 1}\n{"a": "\xff"}\n', 1, r"a.jsonl, line 2: not UTF-8: byte 0xff at offset 7"),
        ("a.txt", b"one\ntw\xe9\n", 1, r"a.txt, line 2: not UTF-8: byte 0xe9"),
        ("a.csv", b"a\n1\n\xff\n", 1, r"a.csv, line 3: not UTF-8"),
        ("a.csv", b'a\n1\n"open\n2\n', 1, r"a.csv, line 3 to 4: unexpected end of data"),
        ("a.csv", b"a,a\n1,2\n", 0, r"two columns are named 'a'"),
        (
            "a.csv",
            b"a,b\r1,2\r3,4\r",
            0,
            r"a.csv, line 1: a carriage return that no line feed follows ends no row; conv",
        ),
        ("a.csv", b"a,b\n1,x\ry\n2,3\n", 0, r"a.csv, line 2: a carriage return that no line feed follows ends no row"),
        ("a.tsv", b"a\tb\r1\t2\r", 0, r"a.tsv, line 1: a carriage return that no line feed follows ends no row"),
        ("a.json", b'[{"a": 1}, {"a": }]', 1, r"a.json, line 1: broken JSON: Expecting value"),
        ("a.json", b'[{"a": 1},\n{"a": 2}', 2, r"a.json, line 2: cut short: no \]"),
        ("a.json", b'[{"a": 1},\n {"a', 1, r"a.json, line 2: broken JSON: Unterminated string"),
        ("a.json", b'[{"a": 1},\n 3]', 1, r"a.json, line 2: not a JSON object but 3; repair it"),
        ("a.json", b'[{"a": 1} {"a": 2}]', 1, r"no comma between two objects"),
        ("a.json", b'[{"a": 1},]', 1, r"a comma before \]"),
        ("a.json", b'[{"a": 1}] 7', 1, r"more after the array: '7'"),
        ("a.json", b'[{"a": "\xff"}]', 0, r"a.json: not UTF-8"),
    ],
)
def test_a_bad_record_is_named_when_it_is_reached(tmp_path, name, content, good, message):
    (tmp_path / name).write_bytes(content)
    stream = open_records(tmp_path / name)
    found = []
    with pytest.raises((RecordError, SourceError), match=message):
        found.extend(stream)
    assert len(found) == good


@pytest.mark.parametrize("rows", [0, 1, 999, 1000, 1001, 2000])
def test_a_broken_quote_ends_the_file(tmp_path, rows):
    """It is the last record: counting never came to an end, and a run read late raised the error of a later one."""
    path = tmp_path / "a.csv"
    path.write_text("a\n" + "1\n" * rows + '"open\n2\n')
    stream = open_records(path)
    assert stream.count() == rows + 1
    with pytest.raises(SourceError, match=f"there are {rows + 1:,} records, and reading was to go on after 5,000"):
        list(stream.read(after=5000))
    *whole, last = stream.parts[0][1]()
    assert sum(len(list(run.decode())) for run in whole) == rows - rows % ROWS
    with pytest.raises(RecordError, match="unexpected end of data"):
        list(last.decode())


def test_text_that_is_no_utf8_in_a_table(tmp_path):
    column = pa.Array.from_buffers(pa.string(), 2, pa.array([b"ok", b"\xff"]).buffers())
    pq.write_table(pa.table({"text": column}), tmp_path / "a.parquet")
    records = iter(open_records(tmp_path / "a.parquet"))
    assert next(records) == {"text": "ok"}
    with pytest.raises(RecordError, match=r"a.parquet, row 2: 'text' is not UTF-8"):
        next(records)


BROKEN = [b"one", b"\xff", "tr\u00e8s".encode()]  # the second is in the second row of each column below


def nested(texts):
    """Columns of three rows, and the name of the broken text."""
    rows = [0, 1, 2, 3]
    pairs = pa.StructArray.from_arrays([pa.array([1, 2, 3]), texts], ["role", "content"])
    yield texts, "text"
    yield pa.ListArray.from_arrays(rows, texts), "text[0]"
    yield pa.LargeListArray.from_arrays(rows, texts), "text[0]"
    yield pa.FixedSizeListArray.from_arrays(texts, 1), "text[0]"
    yield pa.ListViewArray.from_arrays(rows[:3], [1] * 3, texts), "text[0]"
    yield pairs, "text.content"
    yield pa.ListArray.from_arrays(rows, pairs), "text[0].content"
    yield pa.MapArray.from_arrays(rows, pa.array(["a", "b", "c"]), texts), "text[0].value"
    yield pa.DictionaryArray.from_arrays(pa.array(rows[:3], pa.int8()), texts), "text"
    yield (
        pa.ListArray.from_arrays(rows, pa.DictionaryArray.from_arrays(pa.array(rows[:3], pa.int8()), texts)),
        "text[0]",
    )


@pytest.mark.parametrize("number", range(10))
@pytest.mark.parametrize("kind", ["string", "large_string", "string_view"])
def test_a_text_that_is_no_utf8_is_one_bad_record_wherever_it_lies(tmp_path, kind, number):
    bytes_of = {"string": pa.binary(), "large_string": pa.large_binary(), "string_view": pa.binary_view()}[kind]
    texts = pa.array(BROKEN, bytes_of).view(getattr(pa, kind)())
    column, name = list(nested(texts))[number]
    sound, _ = list(nested(pa.array(["one", "two", "tr\u00e8s"], getattr(pa, kind)())))[number]
    made = pa.table({"text": column})
    with pa.ipc.new_file(tmp_path / "a.arrow", made.schema) as writer:
        writer.write_table(made)
    with pytest.raises(RecordError) as caught:
        list(open_records(tmp_path / "a.arrow"))
    assert str(caught.value).startswith(f"{tmp_path}/a.arrow, row 2: {name!r} is not UTF-8: byte 0xff at offset 0")
    found = list(open_records(tmp_path / "a.arrow", on_bad_record="skip"))
    assert [one["text"] for one in found] == [one for row, one in enumerate(sound.to_pylist()) if row != 1]


def test_text_under_a_null_is_not_looked_at(tmp_path):
    texts = pa.array(BROKEN).view(pa.string())
    column = pa.ListArray.from_arrays(pa.array([0, 1, 2, 3], pa.int32()), texts, mask=pa.array([False, True, False]))
    made = pa.table({"text": column})
    with pa.ipc.new_file(tmp_path / "a.arrow", made.schema) as writer:
        writer.write_table(made)
    assert [one["text"] for one in open_records(tmp_path / "a.arrow")] == column.to_pylist()


@pytest.mark.parametrize("content", [b"", b" \n ", b"[]", b" [ ] \n"])
def test_no_record_at_all(tmp_path, content):
    (tmp_path / "a.json").write_bytes(content if content != b" \n " else b"\n")
    stream = open_records(tmp_path / "a.json")
    assert (list(stream), stream.count()) == ([], 0)


def test_an_object_longer_than_a_chunk(tmp_path):
    long = [{"text": "ü" * 1_500_000}, {"text": "b"}]
    (tmp_path / "a.json").write_text(json.dumps(long, ensure_ascii=False))
    assert list(open_records(tmp_path / "a.json")) == long


def test_an_object_that_is_too_large_is_not_called_broken(tmp_path, monkeypatch):
    monkeypatch.setattr(json_array, "_LARGEST", 3 << 20)
    large = {"text": "x" * (12 << 20)}
    (tmp_path / "a.json").write_text(json.dumps([{"text": "a"}, large, {"text": "b"}]))
    told = (
        "line 1: a value of more than 3,145,728 characters, the most that is read, or broken JSON: Unterminated string"
    )
    with pytest.raises(RecordError, match=told):
        list(open_records(tmp_path / "a.json"))
    (tmp_path / "a.json").write_text('[{"text": "a"}, {"text": "' + "x" * (12 << 20))
    with pytest.raises(RecordError, match="a value of more than 3,145,728 characters"):
        list(open_records(tmp_path / "a.json"))
    (tmp_path / "a.json").write_text('[{"text": "a"}, {"text": "x}]')
    with pytest.raises(RecordError, match="line 1: broken JSON: Unterminated string"):
        list(open_records(tmp_path / "a.json"))


def test_what_is_no_input_is_refused(tmp_path):
    with pytest.raises(SourceError, match="a mapping of train is no list of records"):
        open_records({"train": RECORDS})
    with pytest.raises(SourceError, match="int holds no records"):
        open_records(3)
    with pytest.raises(SourceError, match="row 2: str, not a dict"):
        list(open_records([{}, "text"]))
    with pytest.raises(SourceError, match="no such file"):
        open_records(tmp_path / "gone.jsonl")
    (tmp_path / "a.pdf").write_bytes(b"%PDF")
    with pytest.raises(SourceError, match=r"a .pdf file would be read as plain text"):
        open_records(tmp_path / "a.pdf")
    path = write(tmp_path, "parquet")
    with pytest.raises(OptionError, match="strings are label, and these records are parquet"):
        open_records(path, strings=["label"])
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(SourceError, match="not a whole Parquet file"):
        open_records(path)


def test_a_file_that_changes_meanwhile_is_refused(tmp_path):
    path = write(tmp_path, "jsonl")
    stream = open_records(path)
    path.write_text('{"text": "other"}\n')
    for read in (lambda: list(stream), stream.fingerprint, stream.count):
        with pytest.raises(SourceError, match="changed while the job was running"):
            read()


def test_an_unknown_text_unit_is_refused(tmp_path):
    (tmp_path / "a.txt").write_text("one\n")
    with pytest.raises(OptionError, match="text_unit is 'words'; it is 'file', 'line' or 'paragraph'"):
        open_records(tmp_path / "a.txt", text_unit="words")


def test_a_function_that_fails_is_named_as_the_cause():
    def broken():
        raise RuntimeError("unplugged")

    with pytest.raises(SourceError, match=r"memory: cannot be read from row 1 on \(unplugged\); repair it"):
        list(open_records(broken))
