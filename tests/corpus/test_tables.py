from __future__ import annotations

import gzip
import json
from collections import deque

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nopad.corpus import ArrayFolder, CorpusOptions, DatasetSource, DictSource, IterableSource, open_source, sequences
from nopad.corpus.encoders import Fields
from nopad.corpus.options import ReaderOptions
from nopad.corpus.records import BadRecord
from nopad.errors import MissingExtraError, OptionError, RecordError, SourceError

ROWS = [{"input_ids": [i, i + 1], "labels": [i, -1], "label": i} for i in range(100)]


def write(path, rows=ROWS, **columns):
    pq.write_table(pa.table(columns) if columns else pa.Table.from_pylist(rows), path)
    return path


def counted(source, **options):
    options = CorpusOptions(**{"capacity": 64} | options)
    groups = list(sequences(source.blocks(), None, options))
    tokens = [token for group in groups for token in group.batch.tokens["input_ids"].tolist()]
    return tokens, sum((group.counts for group in groups[1:]), groups[0].counts)


def refusal(*inputs, **options) -> str:
    with pytest.raises(SourceError) as caught:
        open_source(list(inputs), ReaderOptions(**options))
    return str(caught.value)


class TestFiles:
    def test_a_parquet_file_cut_short(self, tmp_path):
        path = write(tmp_path / "a.parquet")
        path.write_bytes(path.read_bytes()[:-100])
        assert refusal(path).startswith(f"{path}: not a whole Parquet file (Parquet magic bytes not found in footer")

    def test_an_arrow_file_that_is_none(self, tmp_path):
        path = tmp_path / "a.arrow"
        path.write_bytes(b"ARROW1 or so")
        assert refusal(path).startswith(f"{path}: not a whole Arrow file (")

    def test_a_parquet_file_damaged_inside(self, tmp_path):
        path = tmp_path / "a.parquet"
        pq.write_table(pa.Table.from_pylist(ROWS), path, compression="zstd", use_dictionary=False)
        data = bytearray(path.read_bytes())
        data[20:60] = bytes(40)
        path.write_bytes(data)
        with pytest.raises(SourceError, match=r"a.parquet: (not a whole Parquet file|cannot be read) \("):
            list(open_source(path).blocks())

    def test_a_column_missing_in_one_of_twenty(self, tmp_path):
        for i in range(20):
            rows = ROWS if i != 13 else [{k: v for k, v in row.items() if k != "labels"} for row in ROWS]
            write(tmp_path / f"{i:02d}.parquet", rows)
        assert refusal(tmp_path) == (
            f"the column 'labels' is not alike in all files: int64 per token in {tmp_path}/00.parquet, "
            f"no such column in {tmp_path}/13.parquet; make them alike, or name the columns to carry with carry="
        )
        assert refusal(tmp_path, carry=["labels"]) == (
            f"{tmp_path}/13.parquet: no column 'labels'; did you mean 'label'? "
            'It has the columns "input_ids", "label"'
        )
        assert open_source(tmp_path, ReaderOptions(carry=["label"])).left_out == ("labels",)

    def test_a_type_that_changes_between_files(self, tmp_path):
        write(tmp_path / "a.parquet")
        write(tmp_path / "b.parquet", [{**row, "label": float(row["label"])} for row in ROWS])
        assert "the column 'label' is not alike in all files: int64 per sequence in" in refusal(tmp_path)
        assert "double per sequence in" in refusal(tmp_path)

    def test_content_of_another_type_in_one_file(self, tmp_path):
        write(tmp_path / "a.parquet")
        write(tmp_path / "b.parquet", input_ids=[["a"], ["b"]])
        assert refusal(tmp_path) == (
            f"{tmp_path}/b.parquet: the column 'input_ids' is list<element: string>, not lists of integers; "
            "choose another column, or convert it"
        )

    def test_text_beside_ids(self, tmp_path):
        write(tmp_path / "a.parquet")
        write(tmp_path / "b.parquet", text=["x"])
        assert refusal(tmp_path).startswith(f"{tmp_path}/b.parquet holds text and {tmp_path}/a.parquet ready-made ids")

    def test_a_bad_row_names_file_and_row(self, tmp_path):
        rows = [dict(row) for row in ROWS]
        rows[41]["labels"] = [1]
        source = open_source(write(tmp_path / "a.parquet", rows))
        with pytest.raises(RecordError) as caught:
            counted(source)
        assert str(caught.value) == (
            f"{tmp_path}/a.parquet, row 42: 'labels' has 1 values beside 2 in 'input_ids' "
            "(if it is no column of tokens, leave it out of carry=); "
            'repair it, or choose on_bad_record="skip"'
        )
        tokens, counts = counted(source, on_bad_record="skip")
        assert (counts.records, counts.sequences, counts.bad_skipped) == (100, 99, 1)
        assert tokens == [token for i, row in enumerate(rows) if i != 41 for token in row["input_ids"]]

    def test_ids_beyond_the_vocabulary(self, tmp_path):
        source = open_source(write(tmp_path / "a.parquet"))
        with pytest.raises(
            RecordError, match=r"a.parquet, row 98: token 1 has the id 98, beyond the vocabulary of 98; repair"
        ):
            counted(source, vocab_size=98)
        _, counts = counted(source, vocab_size=98, on_bad_record="skip")
        assert (counts.sequences, counts.bad_skipped) == (97, 3)
        assert counted(source, vocab_size=101)[1].bad_skipped == 0

    def test_padding_is_counted(self, tmp_path):
        rows = [
            {"input_ids": [1, 2, 0, 0], "attention_mask": [1, 1, 0, 0]},
            {"input_ids": [1] * 4, "attention_mask": [1] * 4},
        ]
        source = open_source(write(tmp_path / "a.parquet", rows))
        tokens, counts = counted(source)
        assert tokens == [1, 2, 1, 1, 1, 1]
        assert (counts.stripped, counts.stripped_tokens) == (1, 2)

    @pytest.mark.parametrize("block_bytes", [1, 300, 1 << 20])
    def test_blocks_do_not_change_the_sequences(self, tmp_path, block_bytes):
        source = open_source(write(tmp_path / "a.parquet"), block_bytes=block_bytes)
        assert len(list(source.blocks())) == {1: 100, 300: 12, 1 << 20: 1}[block_bytes]
        assert counted(source)[0] == [token for row in ROWS for token in row["input_ids"]]

    def test_a_damaged_tail_of_a_compressed_file(self, tmp_path):
        path = tmp_path / "a.jsonl.gz"
        path.write_bytes(gzip.compress(b'{"text": "hello"}\n' * 10_000)[:-20])
        with pytest.raises(SourceError, match=r"a.jsonl.gz: cannot be read \(Truncated compressed stream\)"):
            list(open_source(path).blocks())

    def test_what_is_not_compressed_at_all(self, tmp_path):
        (tmp_path / "a.txt.gz").write_bytes(b"plain")
        with pytest.raises(SourceError, match=r"a.txt.gz: cannot be read \(zlib inflate failed"):
            list(open_source(tmp_path).blocks())


class TestJsonl:
    def lines(self, tmp_path, *rows, **options):
        path = tmp_path / "a.jsonl"
        path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
        return open_source(path, ReaderOptions(**options))

    def test_fields_ride_along_and_bad_ones_are_told(self, tmp_path):
        source = self.lines(
            tmp_path,
            {"input_ids": [1, 2], "labels": [3, 4], "name": "a"},
            {"input_ids": [5], "labels": [6], "name": 7},
            "",
            "broken",
            {"input_ids": [8], "labels": [9]},
            {"input_ids": [10], "labels": [11, 12], "name": "b"},
            {"input_ids": [13], "labels": [14], "name": "c", "more": 1},
            carry=["labels", "name"],
        )
        assert source.left_out == ("more",)
        [block] = source.blocks()
        found = list(block.records())
        assert [(run.line, run.reason) for run in found if hasattr(run, "reason")] == [
            (2, "'name' is 7, not string"),
            (4, "broken JSON: Expecting value at column 1"),
            (5, "no 'name'; it is carried with the others"),
            (
                6,
                "'labels' has 2 values beside 1 in 'input_ids' (if it is no column of tokens, leave it out of carry=)",
            ),
        ]
        _, counts = counted(source, on_bad_record="skip")
        assert (counts.records, counts.sequences, counts.bad_skipped) == (6, 2, 4)
        group = next(sequences(source.blocks(), None, CorpusOptions(capacity=8, on_bad_record="skip")))
        assert group.batch.values["seq_index"].tolist() == [0, 5]
        assert group.batch.tokens["labels"].tolist() == [3, 4, 14]
        assert group.batch.values["name"].to_pylist() == ["a", "c"]

    def test_a_mask_is_used(self, tmp_path):
        source = self.lines(tmp_path, {"input_ids": [1, 0], "attention_mask": [1, 0]})
        assert counted(source)[0] == [1]

    def test_text_with_a_field(self, tmp_path):
        source = self.lines(tmp_path, {"text": "a", "id": "x"}, {"text": "b", "id": "y"}, carry=["id"])
        [run] = [found for block in source.blocks() for found in block.records()]
        assert (run.texts, run.values["id"].to_pylist()) == (["a", "b"], ["x", "y"])
        assert self.lines(tmp_path, {"text": "a", "id": "x"}).left_out == ("id",)

    def test_a_field_that_the_first_object_lacks(self, tmp_path):
        with pytest.raises(SourceError, match=r"a.jsonl, line 2: no column 'labels'; it has the columns \"input_ids\""):
            self.lines(tmp_path, {"input_ids": []}, {"input_ids": [1]}, carry=["labels"])


class TestArrays:
    def arrays(self, folder, **arrays):
        folder.mkdir(exist_ok=True)
        for name, values in arrays.items():
            np.save(folder / f"{name}.npy", np.asarray(values))
        return folder

    def test_columns_by_their_length(self, tmp_path):
        folder = self.arrays(
            tmp_path / "a",
            ids=np.array([1, 2, 3, 4, 5], np.uint16),
            offsets=[0, 2, 2, 5],
            labels=np.array([1, 2, 3, 4, 5], np.int8),
            weight=np.array([0.5, 1, 2], np.float32),
        )
        source = open_source(folder)
        [group] = sequences(source.blocks(), None, CorpusOptions(capacity=8))
        assert group.batch.tokens["input_ids"].tolist() == [1, 2, 3, 4, 5]
        assert group.batch.values["seq_index"].tolist() == [0, 2]
        assert group.batch.tokens["labels"].dtype == np.int8
        assert group.batch.values["weight"].to_pylist() == [0.5, 2]
        assert group.counts.empty_skipped == 1

    @pytest.mark.parametrize("block_bytes", [8, 40, 1 << 20])
    def test_blocks_do_not_change_the_sequences(self, tmp_path, block_bytes):
        lengths = np.random.default_rng(0).integers(0, 5, 50)
        folder = self.arrays(
            tmp_path / "a", ids=np.arange(lengths.sum()), offsets=np.concatenate([[0], np.cumsum(lengths)])
        )
        source = ArrayFolder(folder, ReaderOptions(ids_field="ids"), block_bytes=block_bytes)
        assert counted(source)[0] == list(range(lengths.sum()))

    @pytest.mark.parametrize(
        ("arrays", "message"),
        [
            ({"offsets": [0, 1]}, "no array of integers ids.npy"),
            ({"ids": [0.5], "offsets": [0, 1]}, "no array of integers ids.npy"),
            (
                {"ids": [1, 2], "offsets": [0, 1]},
                "offsets.npy goes from [0] to [1], and must go from 0 to the 2 values",
            ),
            ({"ids": [1, 2], "offsets": [1, 2]}, "offsets.npy goes from [1] to [2]"),
            (
                {"ids": [1, 2], "offsets": [0, 2], "x": [1, 2, 3]},
                "x.npy has 3 values; one per token would be 2, one per sequence 1",
            ),
            ({"ids": [[1, 2]], "offsets": [0, 2]}, "ids.npy: an array of shape (1, 2) and type int64; columns are"),
            ({"ids": ["a"], "offsets": [0, 1]}, "ids.npy: an array of shape (1,) and type <U1; columns are"),
        ],
    )
    def test_arrays_that_do_not_fit(self, tmp_path, arrays, message):
        assert message in refusal(self.arrays(tmp_path / "a", **arrays))

    def test_offsets_that_fall(self, tmp_path):
        folder = self.arrays(tmp_path / "a", ids=[1, 2, 3], offsets=[0, 2, 1, 3])
        with pytest.raises(SourceError, match=r"offsets.npy falls from 2 to 1 at 1"):
            list(open_source(folder).blocks())

    def test_a_column_that_fits_both(self, tmp_path):
        """Three tokens in three sequences, one of them empty: is the label one per token, or one per sequence?"""
        unclear = self.arrays(tmp_path / "a", ids=[5, 6, 7], offsets=[0, 2, 2, 3], label=[10, 20, 30])
        with pytest.raises(SourceError, match=r"label.npy has 3 values, .* one per token, or one per sequence\?"):
            list(open_source(unclear).blocks())
        assert counted(open_source(unclear, ReaderOptions(carry=())))[0] == [5, 6, 7]
        masked = self.arrays(tmp_path / "b", ids=[5, 6, 7], offsets=[0, 2, 2, 3], attention_mask=[1, 0, 1])
        assert counted(open_source(masked))[0] == [5, 7]
        clear = self.arrays(tmp_path / "c", ids=[5, 6, 7], offsets=[0, 1, 2, 3], label=[10, 20, 30])
        assert counted(open_source(clear))[0] == [5, 6, 7]

    def test_no_npy_file(self, tmp_path):
        folder = self.arrays(tmp_path / "a", offsets=[0])
        (folder / "ids.npy").write_bytes(b"no")
        assert "ids.npy: not an .npy file of numbers" in refusal(folder)


class TestPython:
    def test_values_of_another_type_are_bad_records(self):
        source = DictSource([*ROWS, {"input_ids": [1], "labels": [1], "label": "x"}, {"label": 3}], rows=40)
        with pytest.raises(RecordError, match=r"memory, row 101: 'label' is \"x\", not int64; repair it"):
            counted(source)
        assert counted(source, on_bad_record="skip")[1].bad_skipped == 2

    @pytest.mark.parametrize(
        ("good", "bad"),
        [
            (1, 0.5),
            (1, True),
            (1, 2**70),
            (0.5, "x"),
            (0.5, True),
            (True, 1),
            ("a", 1),
            ([1], [0.5]),
            ([1], [True]),
            ([1], "a"),
            ([0.5], ["a"]),
            (np.array([1]), np.array([0.5])),
            ([1], [[1]]),
        ],
    )
    def test_nothing_is_made_to_fit(self, good, bad):
        rows = [{"input_ids": [1], "x": value} for value in (good, bad, None)]
        _, counts = counted(DictSource(rows, ReaderOptions(carry=("x",)), rows=1), on_bad_record="skip")
        assert (counts.sequences, counts.bad_skipped) == (1, 2)

    @pytest.mark.parametrize(
        ("first", "also"),
        [(1, np.int8(3)), (0.5, 3), (0.5, np.float32(1)), (True, np.bool_(False)), ([1], np.array([3])), ([1], (3,))],
    )
    def test_what_fits_as_it_is(self, first, also):
        rows = [{"input_ids": [1], "x": value} for value in (first, also)]
        assert counted(DictSource(rows, ReaderOptions(carry=("x",))))[1].sequences == 2

    @pytest.mark.parametrize("first", [2**70, 2**64 - 1, "\ud800"])
    def test_a_first_value_that_fits_nothing_does_not_lose_the_column(self, first):
        rows = [
            {"input_ids": [i], "x": value} for i, value in enumerate([first, *["a" if first == "\ud800" else 3] * 3])
        ]
        source = DictSource(rows)
        assert [column.name for column in source.carried] == ["x"]
        tokens, counts = counted(source, on_bad_record="skip")
        assert (tokens, counts.bad_skipped) == ([1, 2, 3], 1)

    def test_values_of_no_dimension(self):
        torch = pytest.importorskip("torch")
        rows = [{"input_ids": [1], "a": torch.tensor(3), "b": np.array(0.5)}, {"input_ids": [2], "a": 4, "b": 1.5}]
        [group] = sequences(DictSource(rows).blocks(), None, CorpusOptions(capacity=4))
        assert {name: values.to_pylist() for name, values in group.batch.values.items() if name in "ab"} == {
            "a": [3, 4],
            "b": [0.5, 1.5],
        }

    @pytest.mark.parametrize("rows", [1, 2])
    def test_masked_arrays(self, rows):
        hidden, open_ = np.ma.array([1, 2], mask=[0, 1]), np.ma.array([3, 4], mask=[0, 0])
        tokens, counts = counted(
            DictSource([{"input_ids": i} for i in (open_, hidden)], rows=rows), on_bad_record="skip"
        )
        assert (tokens, counts.bad_skipped) == ([3, 4], 1)

    @pytest.mark.parametrize(
        "items", [lambda: 5, lambda needed: iter(ROWS), lambda: 1 / 0, lambda: ({"input_ids": [1 / n]} for n in (1, 0))]
    )
    def test_functions_that_fail(self, items):
        with pytest.raises(SourceError, match=r"memory: cannot be read from row \d on \(.+\); repair it") as caught:
            counted(open_source(items))
        assert isinstance(caught.value.__cause__, TypeError | ZeroDivisionError)

    @pytest.mark.parametrize("rows", [0, -1, 1.5])
    def test_rows_that_make_no_block(self, rows):
        with pytest.raises(OptionError, match=r"rows must be an integer from 1 to"):
            DictSource(ROWS, rows=rows)
        with pytest.raises(OptionError, match=r"block_records must be an integer from 1 to"):
            IterableSource([[1]], block_records=rows)

    @pytest.mark.parametrize("items", ["hello", b"hello", {"a": 1}])
    def test_one_text_is_no_list_of_texts(self, items):
        with pytest.raises(SourceError, match=r"memory: (str|bytes|dict), not a list of texts or of lists of ids"):
            IterableSource(items)

    def test_an_iterator_can_be_read_once(self):
        source = open_source(iter(ROWS))
        assert len(list(source.blocks())) == 1
        with pytest.raises(SourceError, match="memory: an iterator can be read once; give a function"):
            list(source.blocks())
        again = open_source(lambda: iter(ROWS))
        assert len(list(again.blocks())) == len(list(again.blocks())) == 1

    @pytest.mark.parametrize(
        ("items", "message"),
        [
            (lambda: iter(()), "memory: no item; give at least one dict"),
            (iter([{"input_ids": [1]}, 3]), "memory, row 2: int, not a dict; give dicts of columns"),
            ([{"ids": [1]}], "memory: neither a column 'input_ids' nor 'text'"),
            ([{"input_ids": [[1]]}], "memory: the column 'input_ids' is list<item: list<item: int64>>, not lists"),
            (
                [{"input_ids": np.ones((1, 2), int)}],
                "memory: the column 'input_ids' is list<item: list<item: int64>>, not",
            ),
        ],
    )
    def test_items_that_cannot_be_read(self, items, message):
        with pytest.raises(SourceError) as caught:
            open_source(items)
        assert message in str(caught.value)

    def test_a_dataset_whose_columns_change(self):
        import datasets

        def rows():
            yield {"input_ids": [1], "label": 1}

        dataset = datasets.IterableDataset.from_generator(rows)
        assert dataset.features is None
        source = open_source(dataset)
        assert [column.name for column in source.carried] == ["label"]
        assert counted(source)[0] == [1]
        assert isinstance(source, DatasetSource)


class TestElsewhere:
    def test_a_url_where_nothing_is(self):
        assert refusal("memory://nowhere/a.parquet").startswith("memory://nowhere/a.parquet: nothing there")

    def test_a_scheme_that_nobody_knows(self):
        assert "frob://a: Protocol not known: frob" in refusal("frob://a")

    def test_a_store_without_credentials(self, monkeypatch):
        monkeypatch.setattr("nopad.corpus.remote.reachable", lambda url: True)

        def refuse(url, scheme):
            raise OSError("AWS Error ACCESS_DENIED: no credentials")

        monkeypatch.setattr("nopad.corpus.remote._filesystem", refuse)
        assert refusal("s3://private/a.parquet") == (
            "s3://private/a.parquet: cannot be opened (AWS Error ACCESS_DENIED: no credentials); "
            "check the URL, the network and your credentials for s3://"
        )

    def test_a_scheme_whose_package_is_missing(self, monkeypatch):
        import sys

        monkeypatch.setitem(sys.modules, "fsspec", None)
        with pytest.raises(MissingExtraError, match=r"memory://a: opening memory:// needs fsspec: pip install fsspec"):
            open_source("memory://a")

    def test_a_folder_with_text_compressed_and_not(self):
        import fsspec

        files = fsspec.filesystem("memory")
        files.pipe("/folder/b.txt.gz", gzip.compress(b"zipped"))
        files.pipe("/folder/sub/a.txt", b"plain")
        files.pipe("/folder/.hidden.txt", b"hidden")
        files.pipe("/folder/c.pdf", b"not read")
        source = open_source("memory://folder")
        assert [(block.name, block.data) for block in source.blocks()] == [
            ("b.txt.gz", b"zipped"),
            ("sub/a.txt", b"plain"),
        ]
        assert source.ignored == ("c.pdf",)
        assert "none of its 1 files is of a kind that nopad reads" in refusal("memory://folder/c.pdf")

    def test_a_name_on_the_hub_that_is_not_there(self, monkeypatch):
        monkeypatch.setattr("nopad.corpus.network.reachable", lambda url: True)
        import datasets

        def refuse(name, config, split):
            raise ConnectionError(f"Couldn't reach {name!r} on the Hub")

        monkeypatch.setattr(datasets, "load_dataset", refuse)
        assert refusal("hf:some/name") == (
            "hf:some/name: could not be had from the Hugging Face hub (Couldn't reach 'some/name' on the Hub); "
            "check the name and the network, or give files"
        )

    def test_a_name_on_the_hub(self, monkeypatch):
        monkeypatch.setattr("nopad.corpus.network.reachable", lambda url: True)
        import datasets

        asked = []

        def load(name, config, split):
            asked.append((name, config, split))
            return datasets.Dataset.from_list(ROWS)

        monkeypatch.setattr(datasets, "load_dataset", load)
        for spec in ("hf:some/name", "hf:some/name:test", "hf:some/name@en:train[:1%]"):
            assert counted(open_source(spec))[1].sequences == 100
        assert asked == [("some/name", None, "train"), ("some/name", None, "test"), ("some/name", "en", "train[:1%]")]


class TestWhatAStrangerFound:
    """Each of these was once packed, or lost, without a word."""

    def test_a_mask_in_one_file_only(self, tmp_path):
        padded = {"input_ids": [[1, 2, 0]]}
        pq.write_table(pa.table(padded | {"attention_mask": [[1, 1, 0]]}), tmp_path / "a.parquet")
        pq.write_table(pa.table(padded), tmp_path / "b.parquet")
        with pytest.raises(
            SourceError, match=r"padding marked by 'attention_mask' in .*a.parquet, no mask in .*b.parquet"
        ):
            open_source(tmp_path)
        assert open_source(tmp_path, ReaderOptions(mask_field=None, carry=())).mask is None

    @pytest.mark.parametrize("name", ["label", "attention_mask"])
    @pytest.mark.parametrize("carried", [False, True])
    def test_a_column_that_comes_late(self, tmp_path, name, carried):
        first = {"input_ids": [1, 2]} | ({"weight": 0.5} if carried else {})
        rows = [first] * 1200 + [first | {name: [1, 0]}]
        path = tmp_path / "a.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        for source in (open_source(path), open_source(rows)):
            with pytest.raises(RecordError, match=rf"(line|row) 1201: has '{name}', which the first records have not"):
                list(sequences(source.blocks(), None, CorpusOptions(capacity=8)))
        source = open_source(path, ReaderOptions(carry=(), mask_field=None))
        found = list(sequences(source.blocks(), None, CorpusOptions(capacity=8)))
        assert sum(len(group.batch) for group in found) == 1201

    @pytest.mark.parametrize(
        ("name", "before"), [("attention_mask", None), ("attention_mask", 1), ("attention_mask", 0.5), ("kinds", None)]
    )
    def test_a_column_whose_lists_come_late(self, tmp_path, name, before):
        """Padding was packed as tokens, and values were left out, since the name of the column was known."""
        rows = [{"input_ids": [1, 2], name: before}] * 1200
        path = tmp_path / "a.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in [*rows, {"input_ids": [1, 2], name: [1, 0]}]))
        for source in (open_source(path), open_source([*rows, {"input_ids": [1, 2], name: [1, 0]}])):
            with pytest.raises(RecordError, match=rf"(line|row) 1201: has '{name}', which the first records have not"):
                list(sequences(source.blocks(), None, CorpusOptions(capacity=8)))
        rows *= 2  # nothing comes late
        found = list(sequences(open_source(rows).blocks(), None, CorpusOptions(capacity=8)))
        assert sum(len(group.batch) for group in found) == 2400

    @pytest.mark.parametrize(
        ("first", "late", "bad"),
        [
            ({}, {"label": 1}, True),
            ({}, {"label_ids": 1}, True),
            ({"label": 1}, {"label": 1, "labels": 5}, True),
            ({}, {"label": None, "url": "x"}, False),
            ({"label": "x"}, {"label": 1, "label_ids": 1}, False),  # left out by name
            *(({}, {"labels": odd}, False) for odd in (["bug", "ui"], "bug", {"a": 1}, [1, 2])),  # no labels
        ],
    )
    def test_labels_beside_text_that_come_late(self, tmp_path, first, late, bad):
        """They were left out without a word; beside ids, such records were bad."""
        text = {"text": "a", "other": "b"}
        rows = [*[text | first] * 1001, text | late]
        (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (tmp_path / "a.json").write_text(json.dumps(rows))
        name = f"{next(reversed(late))!r}"
        said = f"has {name}, which the first records have not; add it to all records, or leave it out with carry=[]"
        for data in (rows, tmp_path / "a.jsonl", tmp_path / "a.json"):
            for encoder in (None, Fields(["text", "other"])):
                for find_labels in (True, False):
                    source = open_source(data, ReaderOptions(find_labels=find_labels), encoder=encoder)
                    found = [one for block in source.blocks() for one in block.records()]
                    odd = [(one.line, one.reason) for one in found if isinstance(one, BadRecord)]
                    assert odd == ([(1002, said)] if bad and find_labels else [])

    @pytest.mark.parametrize(
        "mask", [b"\1\0", deque([1, 0]), range(2), iter([1, 0]), {"a": 1}, "10"], ids=lambda mask: type(mask).__name__
    )
    def test_a_mask_that_is_no_list(self, mask):
        """Bytes, texts, dicts and iterators were left out, the late ones without a word, and padding was packed."""
        odd = {"input_ids": [1, 2], "attention_mask": mask}
        with pytest.raises(SourceError, match=r"the mask column 'attention_mask' is .*, not lists of 0 and 1; convert"):
            open_source([odd])
        good = {"input_ids": [1, 2], "attention_mask": np.bool_(True)}
        for first in ({"input_ids": [1, 2]}, good):
            source = open_source([*[first] * 1200, odd, good])
            bad = [one for block in source.blocks() for one in block.records() if isinstance(one, BadRecord)]
            assert [one.line for one in bad] == [1201]
            assert bad[0].reason.startswith("has 'attention_mask', which the first records have not")

    @pytest.mark.parametrize("one", [np.array(1), pa.scalar(0.5), np.float32(1), 1])
    def test_a_mask_of_one_value_of_any_kind(self, one):
        """Arrays without dimensions and scalars were called lists that come late, in row 1 too."""
        row = {"input_ids": [1, 2]}
        for rows in ([row | {"attention_mask": one}] * 2, [row] * 1200 + [row | {"attention_mask": one}]):
            runs = [run for block in open_source(rows).blocks() for run in block.records()]
            assert sum(run.lines.size for run in runs) == len(rows)

    @pytest.mark.parametrize("late", ["3", "0.5", "x", ""])
    @pytest.mark.parametrize("suffix", [".csv", ".tsv"])
    def test_labels_behind_empty_cells(self, tmp_path, suffix, late):
        """The column held text then, so labels were left out; as JSON, the same records are refused."""
        mark = "," if suffix == ".csv" else "\t"
        path = tmp_path / f"a{suffix}"
        path.write_text("".join(mark.join(row) + "\n" for row in [("text", "label"), *[("a", "")] * 1001, ("b", late)]))
        for encoder in (None, Fields(["text"])):
            with pytest.raises(SourceError, match=r"the column 'label' is null in every record that was looked at"):
                open_source(path, ReaderOptions(find_labels=True), encoder=encoder)
            assert open_source(path, encoder=encoder).left_out == ("label",)

    @pytest.mark.parametrize("kind", [pa.int64(), pa.float32()])
    def test_labels_of_a_dictionary_type_beside_text(self, tmp_path, kind):
        label = pa.array([1, 2, 1], kind).dictionary_encode()
        table = pa.table({"text": ["a", "b", "c"], "label": label})
        with pa.ipc.new_file(tmp_path / "a.arrow", table.schema) as file:
            file.write_table(table)
        source = open_source(tmp_path / "a.arrow", ReaderOptions(find_labels=True))
        [run] = [run for block in source.blocks() for run in block.records()]
        assert run.values["label"].to_pylist() == [1, 2, 1]

    def test_a_stream_cut_between_two_batches(self, tmp_path):
        table = pa.table({"input_ids": [[1], [2], [3]]})
        path = tmp_path / "a.arrow"
        with pa.ipc.new_stream(path, table.schema) as stream:
            stream.write_table(table, max_chunksize=1)
        whole = path.read_bytes()
        assert sum(block.data.num_rows for block in open_source(path).blocks()) == 3
        path.write_bytes(whole[:-8])
        with pytest.raises(SourceError, match="an Arrow stream without its end mark, so it was cut short"):
            list(open_source(path).blocks())

    def test_several_splits_in_one_folder(self, tmp_path):
        import datasets

        one = datasets.Dataset.from_list([{"input_ids": [1]}])
        datasets.DatasetDict({"train": one, "test": one}).save_to_disk(tmp_path / "both")
        with pytest.raises(
            SourceError, match=r"a saved DatasetDict of several splits \(test, train\); give one of them"
        ):
            open_source(tmp_path / "both")
        source = open_source(tmp_path / "both" / "train")
        assert source.ignored == ()
        with pytest.raises(SourceError, match=r"a DatasetDict of several splits \(train\); give one of them"):
            DatasetSource(datasets.DatasetDict({"train": one}))

    def test_what_is_no_part_of_a_saved_dataset(self, tmp_path):
        import datasets

        datasets.Dataset.from_list([{"input_ids": [n]} for n in range(3)]).save_to_disk(tmp_path / "saved")
        loaded = datasets.load_from_disk(str(tmp_path / "saved"))
        loaded.map(lambda row: {"input_ids": [row["input_ids"][0] + 10]}, load_from_cache_file=False)
        (cache,) = (tmp_path / "saved").glob("cache-*.arrow")  # map leaves its result beside what it read
        source = open_source(tmp_path / "saved")
        assert counted(source)[0] == [0, 1, 2]
        assert source.ignored == (f"{cache.name} (no part of the saved dataset)",)
        assert counted(open_source(tmp_path))[0] == [0, 1, 2]
        by_url = open_source(f"file://{tmp_path / 'saved'}")
        assert (counted(by_url)[0], by_url.ignored) == ([0, 1, 2], source.ignored)
        assert counted(open_source(f"file://{tmp_path}"))[0] == [0, 1, 2]
        assert counted(open_source(cache))[0] == [10, 11, 12]

    def test_a_dataset_saved_twice_in_one_folder(self, tmp_path):
        import datasets

        saved = datasets.Dataset.from_list([{"input_ids": [n]} for n in range(4)])
        saved.save_to_disk(tmp_path, num_shards=4)
        saved.save_to_disk(tmp_path, num_shards=2)  # leaves the four files there
        assert counted(open_source(tmp_path))[0] == [0, 1, 2, 3]
        (tmp_path / "data-00001-of-00002.arrow").unlink()
        with pytest.raises(SourceError, match=r"data-00001-of-00002.arrow of this saved dataset is missing; save"):
            open_source(tmp_path)

    @pytest.mark.parametrize(
        "state",
        ["{}", "[]", "no JSON", '{"_data_files": 7}', '{"_data_files": []}', pytest.param("[" * 100_000, id="deep")],
    )
    def test_a_state_json_of_another_program(self, tmp_path, state):
        (tmp_path / "state.json").write_text(state)
        with pa.ipc.new_file(tmp_path / "a.arrow", (table := pa.table({"input_ids": [[1]]})).schema) as file:
            file.write_table(table)
        assert counted(open_source(tmp_path))[0] == [1]

    def test_folders_that_are_columns(self, tmp_path):
        (tmp_path / "year=2024").mkdir()
        pq.write_table(pa.table({"input_ids": [[1]]}), tmp_path / "year=2024" / "a.parquet")
        assert open_source(tmp_path).left_out == ("year (of a folder)",)

    def test_a_packed_dataset_is_no_source(self, tmp_path):
        (tmp_path / "nopad.json").write_text("{}")
        with pytest.raises(SourceError, match="a packed dataset already"):
            open_source(tmp_path)

    def test_a_table_under_another_suffix(self, tmp_path):
        pq.write_table(pa.table({"input_ids": [[1]]}), tmp_path / "a.pq")
        with pytest.raises(SourceError, match=r"a.pq: its content is that of a .parquet file; rename it so"):
            open_source(tmp_path / "a.pq")

    def test_objects(self):
        import pandas
        import torch

        with pytest.raises(SourceError, match=r"give datasets\.Dataset\.from_pandas\(frame\)"):
            open_source(pandas.DataFrame({"input_ids": [[1]]}))
        [block] = open_source([{"input_ids": torch.tensor([1, 2])}]).blocks()
        assert block.data.column("input_ids").to_pylist() == [[1, 2]]
        assert open_source([[1, 2], [3]]).kind == "ids"
        with pytest.raises(SourceError, match="hf: names no dataset"):
            open_source("hf:")

    @pytest.mark.parametrize(
        ("make", "message"),
        [
            (lambda: pa.table({"input_ids": [[1]]}), r"a pyarrow Table is read as a dataset: give datasets.Dataset"),
            (lambda: np.ones((2, 3), int), r"ndarray of shape \(2, 3\) is no corpus: give a list of one-dimensional"),
            (lambda: __import__("torch").ones(2, 3), r"Tensor of shape \(2, 3\) is no corpus"),
            (lambda: 7, "int is no input; give a path"),
            (lambda: None, "NoneType is no input"),
            (lambda: {"a.jsonl"}, "set is no input"),
            (lambda: b"a.jsonl", "bytes is no input"),
            (lambda: ["a.jsonl", 7], "a.jsonl|int in a list of paths"),
            (lambda: [[1], 7], "record 2 is int, not a list of ids as the first is"),
        ],
    )
    def test_objects_that_are_no_corpus(self, make, message):
        with pytest.raises(SourceError, match=message):
            open_source(make())

    def test_polars(self):
        class DataFrame:
            pass

        DataFrame.__module__ = "polars.dataframe.frame"
        with pytest.raises(
            SourceError, match=r"a polars DataFrame is read as a dataset: give datasets.Dataset.from_po"
        ):
            open_source(DataFrame())

    def test_rows_of_arrays_and_tensors(self):
        import torch

        rows = [torch.tensor([1, 2]), np.array([3], np.uint8), [4]]
        assert counted(open_source(rows))[0] == [1, 2, 3, 4]
        with pytest.raises(RecordError, match=r"row 2: 'input_ids' is .*requires_grad=True"):
            counted(open_source([{"input_ids": [1]}, {"input_ids": torch.ones(2, requires_grad=True)}]))


class TestDatasets:
    @pytest.fixture
    def datasets(self):
        return pytest.importorskip("datasets")

    def test_a_transform_is_refused(self, datasets):
        dataset = datasets.Dataset.from_list(ROWS)
        for changed in (dataset.with_transform(lambda rows: rows), dataset.map(lambda row: row)):
            if changed.format["type"] != "custom":
                assert counted(open_source(changed))[1].sequences == 100
                continue
            with pytest.raises(
                SourceError, match=r"has a transform .*; apply it with dataset.map, or take it off with"
            ):
                open_source(changed)

    def test_columns_that_a_format_hides_stay_hidden(self, datasets):
        dataset = datasets.Dataset.from_list(ROWS).with_format("numpy", columns=["input_ids"])
        assert open_source(dataset).carried == ()

    @pytest.mark.parametrize(
        ("odd", "reason"),
        [
            ({"input_ids": [0.5]}, r"'input_ids' is \[0.5\], not list<item: int64>"),
            ({"input_ids": "text"}, "'input_ids' is \"text\", not list<item: int64>"),
            ({"input_ids": None}, "'input_ids' is null"),
            ({"other": [1]}, "no 'input_ids'|has 'other'"),
            ({"input_ids": [1], "attention_mask": [0]}, "has 'attention_mask', which the first records have not"),
        ],
    )
    def test_rows_that_are_not_alike(self, datasets, odd, reason):
        def rows():
            yield from ({"input_ids": [i]} for i in range(1200))
            yield odd
            yield {"input_ids": [7]}

        dataset = datasets.IterableDataset.from_generator(rows)
        with pytest.raises(RecordError, match=rf"dataset, row 1201: ({reason})"):
            counted(open_source(dataset))
        tokens, counts = counted(open_source(dataset), on_bad_record="skip")
        assert (tokens[-1], counts.sequences, counts.bad_skipped) == (7, 1201, 1)

    def test_what_a_library_cannot_read(self, datasets):
        features = datasets.Features({"input_ids": datasets.List(datasets.Value("int32"))})

        def rows():
            yield {"input_ids": [1]}
            raise KeyError("broken inside")

        dataset = datasets.IterableDataset.from_generator(rows, features=features)
        with pytest.raises(
            SourceError, match=r"dataset: cannot be read from row \d+ on \('broken inside'\); repair it"
        ):
            counted(open_source(dataset))
