"""Files that change under a job, and files that are damaged: an error that names the file, never other data, no crash.

The judge is the list of values that were written: whatever comes out must be a beginning of it, and an end without an
error must be the end of it.
"""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import textwrap
from contextlib import suppress
from itertools import count
from types import SimpleNamespace

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import nopad
from nopad.corpus import CorpusOptions, DatasetSource, LengthsFile, objects, open_source, sequences
from nopad.corpus.batches import checked
from nopad.corpus.inputs import InputFile
from nopad.corpus.record_stream import open_records
from nopad.errors import FormatError, NopadError, RecordError, SourceError

N = 4000
BLOCK = 1 << 12


def table(first: int) -> pa.Table:
    ids = [[first + i, i] for i in range(N)]
    return pa.table({"input_ids": pa.array(ids, pa.list_(pa.int32())), "label": pa.array(range(N), pa.int64())})


def parquet(folder, first):
    path = folder / "a.parquet"
    pq.write_table(table(first), path, row_group_size=200, compression="none", use_dictionary=False)
    return path


def arrow_file(folder, first):
    path = folder / "a.arrow"
    with pa.ipc.new_file(path, table(first).schema) as writer:
        writer.write_table(table(first), max_chunksize=200)
    return path


def arrow_stream(folder, first):
    path = folder / "a.arrow"
    with pa.ipc.new_stream(path, table(first).schema) as writer:
        writer.write_table(table(first), max_chunksize=200)
    return path


def arrays(folder, first):
    (folder / "arrays").mkdir(exist_ok=True)
    np.save(folder / "arrays/offsets.npy", np.arange(N + 1) * 2)
    np.save(folder / "arrays/ids.npy", np.array(table(first)["input_ids"].to_pylist()).ravel())
    return folder / "arrays/ids.npy"


def jsonl(folder, first):
    path = folder / "a.jsonl"
    path.write_text("".join(f'{{"input_ids": [{first + i:06d}, {i:06d}]}}\n'.replace(" 0", " 1") for i in range(N)))
    return path


def jsonl_gz(folder, first):
    path = folder / "a.jsonl.gz"
    rng = np.random.default_rng(first)
    lines = (json.dumps({"input_ids": rng.integers(10**8, 10**9, 40).tolist()}) for _ in range(N))
    path.write_bytes(gzip.compress("\n".join(lines).encode(), 1, mtime=0))
    return path


def mapped(folder, first):
    """A `datasets.Dataset` object, which maps the file."""
    return arrow_stream(folder, first).rename(folder / "mapped.arrow")


FORMS = (parquet, arrow_file, arrow_stream, arrays, jsonl, jsonl_gz, mapped)


def opened(path):
    if path.name == "mapped.arrow":
        return open_source(datasets.Dataset.from_file(str(path)), block_bytes=BLOCK)
    return open_source(path.parent if path.suffix == ".npy" else path, block_bytes=BLOCK)


def ids_of(blocks):
    return [
        token
        for group in sequences(blocks, None, CorpusOptions(capacity=64), group_bytes=1)
        for token in group.batch.tokens["input_ids"].tolist()
    ]


def drain(blocks, seen):
    for block in blocks:
        with suppress(RecordError):  # zeros are no JSON
            seen += ids_of([block])


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
class TestAFileThatChanges:
    def test_replaced_by_one_of_the_same_size_before_it_is_read(self, tmp_path, form):
        path = form(tmp_path, 100_000)
        source, size = opened(path), path.stat().st_size
        other = path.with_suffix(".other")
        os.rename(path, other)
        form(tmp_path, 200_000)
        path.write_bytes(path.read_bytes()[:size].ljust(size, b"\n"))
        os.utime(path, ns=(path.stat().st_atime_ns, other.stat().st_mtime_ns))  # the inode tells it
        with pytest.raises(SourceError, match=rf"{path.name}: (written again or replaced|changed) while the job was"):
            list(source.blocks())

    def test_written_again_while_it_is_read(self, tmp_path, form):
        path = form(tmp_path, 100_000)
        whole, blocks, seen = ids_of(opened(path).blocks()), opened(path).blocks(), []
        seen += ids_of([next(blocks)])
        data = bytearray(path.read_bytes())
        data[len(data) // 2 : len(data) // 2 + 512] = bytes(512)
        with open(path, "r+b") as file:
            file.write(data)
        os.utime(path, ns=(1, 1))  # clocks of file systems tick slowly
        message = rf"{path.name}: written again or replaced while the job was running"
        with pytest.raises(SourceError, match=message):
            drain(blocks, seen)
        assert seen == whole[: len(seen)]  # found out before anything is read of what was written

    @pytest.mark.parametrize("left", [0.05, 0.5, 0.95])
    def test_cut_short_while_it_is_read(self, tmp_path, form, left):
        path = form(tmp_path, 100_000)
        whole, blocks, seen = ids_of(opened(path).blocks()), opened(path).blocks(), []
        seen += ids_of([next(blocks)])
        os.truncate(path, int(path.stat().st_size * left))
        with pytest.raises(SourceError, match=rf"{path.name}: changed while the job was running, from \d+ bytes to"):
            drain(blocks, seen)
        assert seen == whole[: len(seen)]


def test_a_mapped_dataset_whose_records_are_encoded(tmp_path):
    path = mapped(tmp_path, 100_000)
    records = open_records(datasets.Dataset.from_file(str(path)))
    os.truncate(path, path.stat().st_size // 2)
    with pytest.raises(SourceError, match=r"mapped.arrow: changed while the job was running"):
        list(records)


@pytest.mark.parametrize("left", [0, 0.5, 0.999])
@pytest.mark.parametrize("use", [open_source, open_records, lambda given: nopad.PackedLoader(given, tokens=64)])
def test_a_mapped_dataset_whose_file_was_cut_before(tmp_path, use, left):
    """Reading what is gone ended the process, and the cut file was the one whose changes were looked for."""
    path = mapped(tmp_path, 100_000)
    dataset = datasets.Dataset.from_file(str(path))
    os.truncate(path, int(path.stat().st_size * left))
    with pytest.raises(SourceError, match=r"mapped.arrow: an Arrow stream without its end mark, so it was cut short"):
        use(dataset)


class TestADatasetThatMapsManyFiles:
    @pytest.fixture
    def source(self, tmp_path):
        made = datasets.Dataset.from_dict({"input_ids": [[i] for i in range(50)]})
        made.save_to_disk(tmp_path, num_shards=10)
        return DatasetSource(datasets.load_from_disk(tmp_path), rows=1)

    def test_they_are_not_checked_at_every_batch(self, source, monkeypatch):
        checked, real = [], InputFile.prove
        monkeypatch.setattr(InputFile, "prove", lambda *given, **more: (checked.append(given), real(*given, **more)))
        monkeypatch.setattr(
            objects, "time", SimpleNamespace(monotonic=lambda: 0.0)
        )  # a check takes no time, so each one is due
        assert len(list(source.batches())) == 50
        assert len(checked) == 10 * 2 * 51
        checked.clear()
        monkeypatch.setattr(
            objects, "time", SimpleNamespace(monotonic=count().__next__)
        )  # from one call to the next, a second
        assert len(list(source.batches())) == 50
        assert 10 * 3 < len(checked) < 10 * 12

    def test_a_change_is_found_at_the_end(self, source, tmp_path, monkeypatch):
        clock = iter([0.0, 1.0, *[2.0] * 999])  # the first check takes a second, and the next one is due much later
        monkeypatch.setattr(objects, "time", SimpleNamespace(monotonic=clock.__next__))
        batches = source.batches()
        next(batches)
        os.utime(next(tmp_path.glob("*.arrow")), ns=(1, 1))
        with pytest.raises(SourceError, match=r"arrow: written again or replaced while the job was running"):
            list(batches)


def test_lengths_that_change(tmp_path):
    path = tmp_path / "lengths.npy"
    np.save(path, np.ones(1000, np.int32))
    source = LengthsFile(path)
    os.truncate(path, 2000)
    with pytest.raises(SourceError, match=r"lengths.npy: changed while the job was running, from 4128 bytes to 2000"):
        _ = source.lengths
    with pytest.raises(FormatError, match=r"cut short: 1,000 values take 4,128 bytes, and it has 2,000"):
        LengthsFile(path)


FUZZ = """
    import sys, pathlib, warnings
    import numpy as np
    from nopad.corpus import CorpusOptions, open_source, sequences
    from nopad.errors import NopadError
    path, rng = pathlib.Path(sys.argv[1]), np.random.default_rng(0)
    whole = path.read_bytes()
    options = CorpusOptions(capacity=64, over_long="drop", on_bad_record="skip")
    for _ in range(60):
        data = bytearray(whole)
        for at in rng.integers(len(data), size=rng.choice([1, 3, 20])).tolist():
            data[at] = rng.integers(256)
        at = int(rng.integers(len(data)))
        data[at : at + 32] = bytes(32) if rng.integers(2) else data[at : at + 32]
        path.write_bytes(data)
        try:
            for group in sequences(open_source(path).blocks(), None, options):
                pass
        except NopadError as error:
            assert str(path) in str(error) or "nothing" in str(error), error
"""


@pytest.mark.parametrize("kind", ["parquet", "file", "stream", "lz4"])
def test_damaged_files_neither_crash_nor_raise_what_is_not_ours(tmp_path, kind):
    rng = np.random.default_rng(1)
    rows = [{"input_ids": rng.integers(0, 99, n).tolist(), "name": f"né{n}", "x": n} for n in rng.integers(1, 30, 300)]
    made = pa.Table.from_pylist(rows).append_column("kind", pa.array(["a", "b"] * 150).dictionary_encode())
    path = tmp_path / ("a.parquet" if kind == "parquet" else "a.arrow")
    if kind == "parquet":
        pq.write_table(made, path, row_group_size=100)
    else:
        options = pa.ipc.IpcWriteOptions(compression="lz4" if kind == "lz4" else None)
        with (pa.ipc.new_stream if kind == "stream" else pa.ipc.new_file)(path, made.schema, options=options) as writer:
            writer.write_table(made, max_chunksize=100)
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(FUZZ), path], capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stderr) == (0, "")


def with_broken_text(values: list[bytes], kind: pa.DataType) -> pa.Array:
    raw = pa.array(values, pa.large_binary() if pa.types.is_large_string(kind) else pa.binary())
    return pa.Array.from_buffers(kind, len(values), raw.buffers())


class TestEveryBatchIsProven:
    @pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
    @pytest.mark.parametrize("content", ["text", "input_ids"])
    def test_text_that_is_no_utf8(self, tmp_path, kind, content):
        broken = with_broken_text([b"one", b"\xfd\xfe", "tr\u00e8s".encode(), b"ab\xc3"], kind)
        made = pa.table({"input_ids": [[1], [2], [3], [4]], "name": broken})
        if content == "text":
            made = pa.table({"text": broken})
        with pa.ipc.new_file(tmp_path / "a.arrow", made.schema) as writer:
            writer.write_table(made)
        source = open_source(tmp_path / "a.arrow")
        [block] = source.blocks()
        found = list(block.records())
        assert [(one.line, one.reason) for one in found if hasattr(one, "reason")] == [
            (2, f"{'text' if content == 'text' else 'name'!r} is not UTF-8: byte 0xfd at offset 0 of the value"),
            (4, f"{'text' if content == 'text' else 'name'!r} is not UTF-8: byte 0xc3 at offset 2 of the value"),
        ]
        if content == "input_ids":
            with pytest.raises(RecordError, match=r"a.arrow, row 2: 'name' is not UTF-8"):
                ids_of(source.blocks())
            options = CorpusOptions(capacity=4, on_bad_record="skip")
            [group] = sequences(source.blocks(), None, options)
            assert group.batch.tokens["input_ids"].tolist() == [1, 3]
            assert group.batch.values["name"].to_pylist() == ["one", "très"]
            assert group.counts.bad_skipped == 2

    def test_string_views(self, tmp_path):
        made = pa.table({"input_ids": [[1], [2]], "name": pa.array(["a", "a longer one than that"], pa.string_view())})
        with pa.ipc.new_file(tmp_path / "a.arrow", made.schema) as writer:
            writer.write_table(made)
        [group] = sequences(open_source(tmp_path / "a.arrow").blocks(), None, CorpusOptions(capacity=4))
        assert group.batch.values["name"].to_pylist() == ["a", "a longer one than that"]

    @pytest.mark.parametrize("values", [["a", "a longer one than that"], [None, "b"], [None, None]])
    @pytest.mark.parametrize("wanted", [pa.string_view(), pa.dictionary(pa.int8(), pa.string_view())])
    def test_string_views_become_text_wherever_they_are(self, wanted, values):
        """A column of nulls became a string view, and a dictionary of them an error of the Arrow library."""
        schema = pa.schema({"x": wanted})
        strings = pa.array(values, pa.string_view())
        column = strings
        if pa.types.is_dictionary(wanted):
            column = pa.DictionaryArray.from_arrays(pa.array([0, 1], pa.int8()), strings)
        given = [column] if any(values) else [column, pa.nulls(2)]
        for one in given:
            found = checked(pa.record_batch([one], ["x"]), schema, "a.arrow", 1).column(0)
            assert (found.type, found.to_pylist()) == (pa.large_string(), values)

    @pytest.mark.parametrize("values", [["a", None], [7, None], [0.5, None], [True, None]])
    def test_a_null_among_the_values_of_a_dictionary(self, tmp_path, values):
        """Arrow counts nulls among the numbers of a dictionary only: these came out as "", -2^63, NaN and False."""
        column = pa.DictionaryArray.from_arrays(pa.array([0, 1, 0], pa.int8()), pa.array(values))
        made = pa.table({"input_ids": [[1], [2], [3]], "x": column})
        with pa.ipc.new_file(tmp_path / "a.arrow", made.schema) as writer:
            writer.write_table(made)
        with pytest.raises(RecordError, match=r"a.arrow, row 2: 'x' is null"):
            ids_of(open_source(tmp_path / "a.arrow").blocks())
        options = CorpusOptions(capacity=4, on_bad_record="skip")
        [group] = sequences(open_source(tmp_path / "a.arrow").blocks(), None, options)
        assert group.batch.tokens["input_ids"].tolist() == [1, 3]
        assert group.batch.values["x"].to_pylist() == [values[0]] * 2

    def test_names_that_come_twice(self, tmp_path):
        made = pa.table([pa.array([[1]]), pa.array([1]), pa.array([2])], names=["input_ids", "x", "x"])
        pq.write_table(made, tmp_path / "a.parquet")
        with pytest.raises(SourceError, match=r"a.parquet: 2 columns 'x'; .* name the columns to carry with carry="):
            open_source(tmp_path / "a.parquet")
        assert ids_of(open_source(tmp_path / "a.parquet", nopad.ReaderOptions(carry=())).blocks()) == [1]

    def test_offsets_that_point_nowhere(self, tmp_path):
        offsets = pa.py_buffer(np.array([0, 2, 1 << 30, 4], np.int32).tobytes())
        bad = pa.Array.from_buffers(
            pa.list_(pa.int32()), 3, [None, offsets], children=[pa.array([1, 2, 3, 4], pa.int32())]
        )
        with pa.ipc.new_file(tmp_path / "a.arrow", pa.schema({"input_ids": bad.type})) as writer:
            writer.write_batch(pa.RecordBatch.from_arrays([bad], names=["input_ids"]))
        with pytest.raises(
            SourceError, match=r"a.arrow(, rows 1 to 3, column 'input_ids': damaged|: not a whole Arrow)"
        ):
            list(open_source(tmp_path / "a.arrow").blocks())

    @pytest.mark.parametrize("order", ["<", ">"])
    def test_arrays_of_either_byte_order(self, tmp_path, order):
        np.save(tmp_path / "ids.npy", np.array([1, 2, 70_000], order + "i4"))
        np.save(tmp_path / "offsets.npy", np.array([0, 2, 3], order + "i8"))
        np.save(tmp_path / "score.npy", np.array([0.5, 1.5], order + "f8"))
        [group] = sequences(open_source(tmp_path).blocks(), None, CorpusOptions(capacity=4))
        assert group.batch.tokens["input_ids"].tolist() == [1, 2, 70_000]
        assert group.batch.values["score"].to_pylist() == [0.5, 1.5]


def test_the_fuzz_judge_sees_our_errors():
    assert issubclass(SourceError, NopadError)
