from __future__ import annotations

import os
import pickle

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nopad import ReaderOptions, open_source
from nopad.errors import LengthError, NopadError, SourceError
from nopad.loading.sources import open_tokens

datasets = pytest.importorskip("datasets")
datasets.disable_progress_bars()


@pytest.fixture(scope="module")
def records(make_records):
    return make_records(2500)


@pytest.fixture(scope="module")
def in_memory(records):
    return datasets.Dataset.from_list(records)


@pytest.fixture(scope="module")
def on_disk(in_memory, tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    in_memory.save_to_disk(folder, num_shards=2)
    return folder


def test_a_dataset_in_memory(in_memory, records, holds):
    holds(open_tokens(in_memory), records)


def test_a_dataset_on_disk_over_the_bounds_of_its_chunks(on_disk, records, holds):
    dataset = datasets.load_from_disk(on_disk)
    assert len(dataset.data.column("input_ids").chunks) > 2
    assert len(dataset.cache_files) == 2
    holds(open_tokens(dataset), records)


def test_a_saved_dataset_by_its_path_has_the_same_fingerprint(on_disk, in_memory, records, holds):
    by_path = open_tokens(on_disk)
    holds(by_path, records)
    assert by_path.fingerprint == open_tokens(in_memory).fingerprint
    dataset = datasets.load_from_disk(on_disk)
    first = open_tokens(dataset.cache_files[0]["filename"])
    holds(first, records[: len(first)])


@pytest.mark.parametrize("state", ["[" * 60_000, "[]", "{", "1" * 5000], ids=lambda state: state[:2])
def test_a_state_json_of_another_program_names_no_arrow_file(tmp_path, state):
    (tmp_path / "state.json").write_text(state)
    (tmp_path / "a.txt").write_text("yes\n")
    with pytest.raises(NopadError):
        open_tokens(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d.shuffle(seed=3),
        lambda d: d.select([5, 3, 1000, 5]),
        lambda d: d.select(range(900, 1100)),
        lambda d: d.select(range(900, 1100)).shuffle(seed=1).select([3, 1, 2]),
        lambda d: datasets.concatenate_datasets([d.select(range(7)), d.shuffle(seed=2)]),
        lambda d: d.filter(lambda row: row["label"] == 3, keep_in_memory=True),
    ],
)
@pytest.mark.parametrize("where", ["memory", "disk"])
def test_what_select_and_shuffle_chose_in_that_order(where, in_memory, on_disk, holds, change):
    dataset = change(in_memory if where == "memory" else datasets.load_from_disk(on_disk))
    holds(open_tokens(dataset), dataset.to_list())


def test_formats_are_neither_used_nor_disturbed(in_memory, records, holds, only):
    dataset = in_memory.with_format("numpy", columns=["input_ids", "label"])
    before = dict(dataset.format)
    holds(open_tokens(dataset), only(records, "input_ids", "label"))
    assert dict(dataset.format) == before


def test_columns_that_are_no_numbers_are_left_out_by_name(holds):
    rows = [{"input_ids": [1, 2], "text": "a", "nested": [["x"]]}, {"input_ids": [3], "text": "b", "nested": []}]
    source = open_tokens(datasets.Dataset.from_list(rows))
    assert sorted(source.left_out) == ["nested", "text"]
    holds(source, [{"input_ids": [1, 2]}, {"input_ids": [3]}])


def test_which_columns_are_read_can_be_chosen(in_memory, records, holds, only):
    chosen = open_tokens(in_memory, ReaderOptions(carry=["label", "scores"]))
    holds(chosen, only(records, "input_ids", "scores", "label"))
    renamed = in_memory.rename_column("input_ids", "tokens")
    source = open_tokens(renamed, ReaderOptions(ids_field="tokens", carry=[]))
    holds(source, only(records, "input_ids"))


LISTS = st.lists(st.lists(st.integers(0, 2**15 - 1), min_size=1, max_size=5), min_size=1, max_size=12)


@pytest.mark.slow
@given(LISTS, st.data(), st.sampled_from([pa.int8, pa.uint16, pa.int32, pa.int64]), st.booleans())
def test_any_cut_of_a_table_into_slices(tmp_path_factory, lists, data, kind, large):
    if kind is pa.int8:
        lists = [[i % 128 for i in ids] for ids in lists]
    made = (pa.large_list if large else pa.list_)(kind())
    flags = [[i % 3 == 0 for i in ids] for ids in lists]
    table = pa.table({"input_ids": pa.array(lists, made), "flags": pa.array(flags, pa.list_(pa.bool_()))})
    cuts = data.draw(
        st.lists(st.tuples(st.integers(0, len(lists)), st.integers(0, len(lists))).map(sorted), max_size=4)
    )
    parts = [table, *(table.slice(begin, end - begin) for begin, end in cuts)]
    expected = [*lists, *(ids for begin, end in cuts for ids in lists[begin:end])]
    source = open_tokens(datasets.Dataset(pa.concat_tables(parts)))
    numbers = data.draw(st.lists(st.integers(0, len(expected) - 1), max_size=9))
    found = source.gather(numbers)
    assert found.tokens["input_ids"].tolist() == [i for number in numbers for i in expected[number]]
    assert found.tokens["flags"].tolist() == [i % 3 == 0 for number in numbers for i in expected[number]]


def test_lists_of_a_fixed_size(holds):
    rows = [[4 * i + j for j in range(4)] for i in range(50)]
    table = pa.table({"input_ids": pa.array(rows, pa.list_(pa.int32(), 4))})
    source = open_tokens(datasets.Dataset(pa.concat_tables([table.slice(7, 20), table.slice(3, 2)])))
    holds(source, [{"input_ids": one} for one in rows[7:27] + rows[3:5]])


def test_a_mask_of_ones_is_dropped_and_padding_refused(holds):
    rows = [{"input_ids": [1, 2], "attention_mask": [1, 1]}, {"input_ids": [3, 0], "attention_mask": [1, 0]}]
    holds(open_tokens(datasets.Dataset.from_list(rows[:1])), [{"input_ids": [1, 2]}])
    with pytest.raises(SourceError, match="dataset: sequence 1 is padded"):
        open_tokens(datasets.Dataset.from_list(rows)).gather([0, 1])


def of(**columns):
    return datasets.Dataset(pa.table(columns))


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"input_ids": pa.array([[1], None])}, "'input_ids' has a null in rows 0 to 1"),
        ({"input_ids": pa.array([[1], [2, None]])}, "'input_ids' has a null in rows 0 to 1"),
        ({"input_ids": pa.array([[1.0, float("nan")]])}, "the column 'input_ids' is list<.*double>, not lists of int"),
        ({"input_ids": [[1, 2]], "labels": [[1]]}, "'labels' has 1 values beside 2 ids in row 0"),
        ({"input_ids": [[1]], "label": pa.array([None], pa.int64())}, "'label' has a null in row 0;"),
        ({"text": ["a"]}, "holds text, and no column of ids"),
        ({"label": [1]}, "neither a column 'input_ids' nor 'text'"),
        ({"input_ids": pa.array([], pa.list_(pa.int32()))}, "holds no sequence"),
        ({"input_ids": [[1]], "seq_lengths": [[1]]}, "packed already"),
    ],
)
def test_columns_that_cannot_be_used(columns, message):
    with pytest.raises(SourceError, match=message):
        open_tokens(of(**columns))


def test_nulls_outside_of_the_chosen_rows_do_not_matter(holds):
    whole = pa.table({"input_ids": pa.array([[1, None], [2, 3], [4]])})
    holds(open_tokens(datasets.Dataset(whole.slice(1, 2))), [{"input_ids": [2, 3]}, {"input_ids": [4]}])


def test_empty_rows():
    with pytest.raises(LengthError, match="dataset: sequence 1 has no token"):
        open_tokens(of(input_ids=[[1], [], [2]]))
    source = open_tokens(of(input_ids=[[1], [], [2]]).select([2, 1, 0]), empty="skip")
    assert source.gather([0, 1]).tokens["input_ids"].tolist() == [2, 1]


def test_a_transform_would_not_be_applied(in_memory):
    with pytest.raises(SourceError, match="has a transform"):
        open_tokens(in_memory.with_transform(lambda rows: rows))


def test_what_has_no_rows_by_number(in_memory):
    for given_ in (in_memory.to_iterable_dataset(), datasets.DatasetDict(train=in_memory)):
        with pytest.raises(SourceError, match=r"a (IterableDataset|DatasetDict) has no rows by number"):
            open_tokens(given_)


def test_a_file_that_is_cut_short_or_written_to_while_open(in_memory, tmp_path):
    in_memory.save_to_disk(tmp_path / "d")
    dataset = datasets.load_from_disk(tmp_path / "d")
    path = dataset.cache_files[0]["filename"]
    sources = [open_tokens(dataset), open_tokens(tmp_path / "d")]
    worker = pickle.dumps(sources[1])
    with open(path, "r+b") as file:
        file.truncate(os.path.getsize(path) - 1000)
    for source in (*sources, pickle.loads(worker)):
        with pytest.raises(SourceError, match="changed since it was opened"):
            source.gather([2400])
    with pytest.raises(SourceError, match=r"not a whole Arrow file|without its end mark"):
        open_tokens(tmp_path / "d")


def test_files_of_other_columns(tmp_path):
    for name, table in (("a", {"input_ids": [[1]]}), ("b", {"input_ids": [[1]], "label": [1]})):
        with (
            pa.OSFile(str(tmp_path / f"{name}.arrow"), "wb") as sink,
            pa.ipc.new_stream(sink, pa.table(table).schema) as w,
        ):
            w.write_table(pa.table(table))
    (tmp_path / "state.json").write_text('{"_data_files": [{"filename": "a.arrow"}, {"filename": "b.arrow"}]}')
    with pytest.raises(SourceError, match=r"b\.arrow: has other columns than .*a\.arrow"):
        open_tokens(tmp_path)


def test_a_damaged_file_whose_lists_lie_beyond_their_values(tmp_path):
    table = pa.table({"input_ids": pa.array([[1, 2], [3], [4, 5, 6]], pa.list_(pa.int32()))})
    with pa.OSFile(str(tmp_path / "a.arrow"), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    data = (tmp_path / "a.arrow").read_bytes()
    good = np.array([0, 2, 3, 6], np.int32).tobytes()
    assert data.count(good) == 1
    for bad, message in (([0, 2, 3, 90], "lie beyond their values"), ([0, 5, 3, 6], "the offsets fall from 5 to 3")):
        (tmp_path / "a.arrow").write_bytes(data.replace(good, np.array(bad, np.int32).tobytes()))
        with pytest.raises(SourceError, match=message):
            open_tokens(tmp_path / "a.arrow")


def test_what_takes_a_copy_is_refused_with_the_way_out():
    rows = {"input_ids": [[0, 5, 6], [7, 8, 0]], "assistant_masks": [[0, 0, 1], [1, 0, 0]]}
    given = datasets.Dataset.from_dict(rows)
    by_pad, by_marks = ReaderOptions(pad_id=0, carry=[]), ReaderOptions(find_labels=True)
    for options, message in (
        (by_pad, r"padding by pad_id is not cut off .* open nopad\.open_source"),
        (by_marks, r"no labels are made from 'assistant_masks' .* open nopad\.open_source"),
    ):
        with pytest.raises(SourceError, match=message):
            open_tokens(given, options)
    assert open_tokens(open_source(given, by_pad)).gather([1, 0]).tokens["input_ids"].tolist() == [7, 8, 5, 6]
    assert open_tokens(open_source(given, by_marks)).gather([1]).tokens["labels"].tolist() == [7, -100, -100]
