from __future__ import annotations

import pickle
from collections import UserList, deque
from uuid import UUID

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset

import nopad
from nopad import Flat, PackedBatch, Rows
from nopad.batch import arrays
from nopad.batch.form import pack_few
from nopad.errors import BatchError, LengthError, NopadError, OptionError, SourceError
from nopad.sequences import Sequences

SEQUENCES = st.lists(st.lists(st.integers(1, 99), min_size=1, max_size=12), min_size=1, max_size=20)
FORMS = [
    {"form": Flat()},
    {"form": Rows(12)},
    {"form": Rows(30, depth=2)},
    {"form": Rows(16, end_to_end=True)},
]


@pytest.mark.parametrize("form", FORMS, ids=["flat", "rows", "deep", "end to end"])
@settings(max_examples=settings.default.max_examples * 4 // 10)
@given(sequences=SEQUENCES)
def test_everything_comes_back_in_order(form, sequences):
    columns = {
        "labels": [[-token for token in sequence] for sequence in sequences],
        "weight": [0.5 * n for n in range(len(sequences))],
        "name": [f"s{n}" for n in range(len(sequences))],
    }
    batch = PackedBatch.from_sequences(sequences, columns=columns, pad_id=7, **form)
    for these in (batch, batch.to("cpu"), pickle.loads(pickle.dumps(batch))):
        assert [part.tolist() for part in these.unpack_tokens(these.input_ids)] == sequences
        assert [part.tolist() for part in these.unpack_tokens(these["labels"])] == columns["labels"]
        assert [float(part) for part in these.unpack_sequences(these["weight"])] == columns["weight"]
        assert these.unpack_sequences(these["name"]) == columns["name"]
        assert all(
            p.tolist() == list(range(len(s)))
            for p, s in zip(these.unpack_tokens(these.position_ids), sequences, strict=True)
        )
    padding = batch.sequence_ids == 0
    assert (batch.input_ids[padding] == 7).all()
    assert (batch["labels"].numpy()[padding] == -100).all()
    assert batch.layout.depth <= (form.get("depth") or len(sequences))


def test_strings_of_sequences_of_one_token():
    row = {"seq_lengths": [1, 1], "seq_index": [4, 2], "input_ids": [5, 6], "position_ids": [0, 0], "id": ["a", "b"]}
    batch = PackedBatch.from_features([row])
    assert (batch["id"].tolist(), batch.records["seq_index"].tolist()) == (["a", "b"], [4, 2])
    assert batch["input_ids"].tolist() == [[5, 6]]


def test_what_is_per_sequence_is_in_the_order_given():
    batch = PackedBatch.from_sequences([[1], [2, 2, 2, 2], [3, 3]], columns={"label": [10, 20, 30]}, form=Rows(4))
    assert batch.input_ids.tolist() == [[1, 3, 3, 0], [2, 2, 2, 2]]
    assert batch.sequence_ids.tolist() == [[1, 3, 3, 0], [2, 2, 2, 2]]
    assert batch.seq_lengths.tolist() == [1, 4, 2]
    assert batch.cu_seqlens.tolist() == [0, 1, 3, 7]  # of the stream: row after row
    assert batch["label"].tolist() == [10, 20, 30]
    assert [part.tolist() for part in batch.unpack_sequences(batch["label"])] == [10, 20, 30]


def test_a_fixed_number_of_rows():
    batch = PackedBatch.from_sequences([[1, 1], [2]], form=Rows(4, rows=3))
    assert batch.input_ids.shape == (3, 4)
    with pytest.raises(OptionError, match="these sequences take 2 rows of 4, and 1 are given"):
        PackedBatch.from_sequences([[1] * 4, [2] * 4], form=Rows(4, rows=1))


def test_given_packs():
    sequences = [[1] * 3, [2] * 2, [3]]
    packs = nopad.pack([3, 2, 1], capacity=4, order="source")
    batch = PackedBatch.from_sequences(sequences, form=Rows(packs=packs))
    assert batch.input_ids.shape == (len(packs), 4)
    with pytest.raises(OptionError, match="packs hold 3 sequences, and 2 are given"):
        PackedBatch.from_sequences(sequences[:2], form=Rows(packs=packs))


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    rows = [
        {"input_ids": [n] * (1 + n % 5), "labels": [n + 1] * (1 + n % 5), "label": n, "name": f"r{n}"} for n in range(9)
    ]
    out = tmp_path_factory.mktemp("packed") / "out"
    nopad.pack_corpus(nopad.open_source(rows), out, nopad.CorpusOptions(capacity=8))
    return nopad.open_packed(out)


@pytest.mark.parametrize("form", [Rows(8), Flat()], ids=["rows", "flat"])
def test_rows_of_a_dataset(dataset, form):
    rows = [dataset[at] for at in range(len(dataset))]
    batch = PackedBatch.from_rows(rows, form)
    assert batch.layout.tokens == sum(row.input_ids.size for row in rows)
    assert batch.records["seq_index"].tolist() == batch["label"].tolist()  # the label is the record's number here
    seen = {}
    tokens = (batch.unpack_tokens(batch[name]) for name in ("input_ids", "labels"))
    values = (batch.unpack_sequences(batch[name]) for name in ("label", "name"))
    for ids, labels, label, name in zip(*tokens, *values, strict=True):
        seen[int(label)] = (ids.tolist(), labels.tolist(), name)
    assert seen == {n: ([n] * (1 + n % 5), [n + 1] * (1 + n % 5), f"r{n}") for n in range(9)}
    if form == Rows(8):
        assert batch.input_ids.shape == (len(dataset), 8)
        assert batch.layout.depth == max(row.seq_lengths.size for row in rows)


def test_features_of_a_loader():
    features = [
        {"input_ids": [1, 2, 0, 0], "attention_mask": [1, 1, 0, 0], "labels": [5, 6, 7, 8], "weight": 0.5},
        {"input_ids": [0, 3, 4, 5], "attention_mask": [0, 1, 1, 1], "labels": [1, 2, 3, 4], "weight": 1.0},
    ]
    batch = PackedBatch.from_features(features)
    assert batch.input_ids.tolist() == [[1, 2, 3, 4, 5]]
    assert batch["labels"].tolist() == [[5, 6, 2, 3, 4]]
    assert batch["weight"].tolist() == [0.5, 1.0]
    [loaded] = DataLoader(features, batch_size=2, collate_fn=PackedBatch.from_features)
    assert torch.equal(loaded["input_ids"], batch["input_ids"])


@pytest.mark.parametrize("form", [Flat(), Rows(4)], ids=repr)
def test_labels_of_first_tokens_are_left_out_in_the_batch_only(form):
    labels = np.array([7, 8, 9, 5, 6])
    given = Sequences(seq_lengths=np.array([3, 2], np.int32), tokens={"input_ids": labels, "labels": labels})
    batch = PackedBatch.from_columns(given, form, causal=True)
    assert [one.tolist() for one in batch.unpack_tokens(batch["labels"])] == [[-100, 8, 9], [-100, 6]]
    assert labels.tolist() == [7, 8, 9, 5, 6]


def test_features_that_are_packs_already():
    features = [
        {"seq_lengths": [2, 1], "seq_index": [4, 5], "input_ids": [1, 2, 3], "label": [7, 8]},
        {"seq_lengths": [1], "seq_index": [6], "input_ids": [9], "label": [5]},
    ]
    batch = PackedBatch.from_features(features)
    assert [part.tolist() for part in batch.unpack_tokens(batch.input_ids)] == [[1, 2], [3], [9]]
    assert batch["labels"].tolist() == [7, 8, 5]  # as transformers' collators call it
    assert "seq_index" not in batch
    for these in (batch, type(batch)(dict(batch.items())), batch.to("cpu"), pickle.loads(pickle.dumps(batch))):
        assert {name: numbers.tolist() for name, numbers in these.records.items()} == {"seq_index": [4, 5, 6]}
    again = PackedBatch.from_features(features, form=Rows(4))
    assert again.records["seq_index"].tolist() == [4, 5, 6]
    assert again["labels"].tolist() == [7, 8, 5]


def test_it_is_a_mapping_as_loops_want_it():
    batch = PackedBatch.from_sequences([[1, 2], [3]], columns={"labels": [[1, 2], [3]]})
    assert list(batch) == ["input_ids", "labels", "position_ids", "attention_mask"]
    again = type(batch)(dict(batch.items()))  # as transformers' Trainer moves a batch
    assert again.layout is batch.layout
    labels = again.pop("labels")
    assert labels.tolist() == [[1, 2, 3]]
    assert "labels" in batch
    assert "labels" not in again
    with pytest.raises(BatchError, match="the attention_mask of a packed batch is its layout, and is not set"):
        batch["attention_mask"] = 1
    assert "2 sequences, 3 tokens in 1 x 3 slots" in repr(batch)


def test_flash_arguments():
    batch = PackedBatch.from_sequences([[1, 2], [3]], columns={"labels": [[1, 2], [3]]})
    how = batch.as_flash_kwargs()
    assert "attention_mask" not in how
    assert how["cu_seq_lens_q"].tolist() == how["cu_seq_lens_k"].tolist() == [0, 2, 3]
    assert how["cu_seq_lens_q"].dtype == torch.int32
    assert (how["max_length_q"], how["max_length_k"]) == (2, 2)
    with pytest.raises(BatchError, match=r"takes one stream; build the batch with nopad.Flat\(\)"):
        PackedBatch.from_sequences([[1]], form=Rows(2)).as_flash_kwargs()


@pytest.mark.parametrize(
    ("build", "error", "says"),
    [
        (lambda: PackedBatch.from_sequences([]), BatchError, "a batch needs at least one sequence"),
        (lambda: PackedBatch.from_features([]), BatchError, "a batch needs at least one sequence"),
        (lambda: PackedBatch.from_rows([]), BatchError, "a batch needs at least one row"),
        (lambda: PackedBatch.from_sequences([[1], []]), LengthError, "sequence 1 has no token; leave empty ones out"),
        (lambda: PackedBatch.from_sequences([[1.5]]), BatchError, "input_ids must be integers, got float64"),
        (lambda: PackedBatch.from_sequences([[[1]]]), BatchError, "input_ids of sequence 0 has 2 dimensions"),
        (lambda: Rows(), OptionError, "rows need their width: give a capacity"),
        (
            lambda: PackedBatch.from_sequences([[1]], "rows"),
            OptionError,
            r"form is 'rows'; it is nopad.Flat\(\) or nopad.Rows\(capacity\)",
        ),
        (lambda: PackedBatch.from_sequences([[1]], Rows), OptionError, "form is <class .*; it is nopad.Flat"),
        (lambda: PackedBatch.from_features([{"input_ids": [1]}], {}), OptionError, "form is {}; it is nopad.Flat"),
        (
            lambda: PackedBatch.from_sequences([[1] * 5], form=Rows(4)),
            LengthError,
            "above the capacity",
        ),
        (
            lambda: PackedBatch.from_sequences([[1], [2]], columns={"a": [1]}),
            BatchError,
            "column 'a' has 1 entries for 2 sequences",
        ),
        (
            lambda: PackedBatch.from_sequences([[1], [2, 2]], columns={"a": [[1], [1]]}),
            BatchError,
            "column 'a' has 1 values for the 2 tokens of sequence 1",
        ),
        (
            lambda: PackedBatch.from_sequences([[1], [2]], columns={"a": [1, [2]]}),
            BatchError,
            "column 'a' has one value for sequence 0 and a list for sequence 1",
        ),
        (
            lambda: PackedBatch.from_features([{"text": "a"}]),
            BatchError,
            "a feature needs input_ids; this one has text",
        ),
        (
            lambda: PackedBatch.from_features([{"input_ids": [1]}, {"input_ids": [1], "a": 1}]),
            BatchError,
            "features 0 and 1 do not have the same keys: a",
        ),
        (
            lambda: PackedBatch.from_features([{"input_ids": [1, 2, 3], "attention_mask": [1, 0, 1]}]),
            BatchError,
            "the attention_mask of feature 0 has a hole",
        ),
        (  # additive, as layers of attention take it: 0 at tokens
            lambda: PackedBatch.from_features([{"input_ids": [1, 2], "attention_mask": [0.0, -10000.0]}]),
            BatchError,
            "the attention_mask of feature 0 has the value -10000.0; it is 1 at tokens and 0 at padding",
        ),
        (  # numbers of sequences, as block-diagonal attention takes them
            lambda: PackedBatch.from_features([{"input_ids": [1, 2, 3], "attention_mask": [1, 2, 2]}]),
            BatchError,
            "the attention_mask of feature 0 has the value 2; it is 1 at tokens and 0 at padding",
        ),
        (
            lambda: PackedBatch.from_features([{"input_ids": [1, 2], "attention_mask": [float("nan"), 1]}]),
            BatchError,
            "the attention_mask of feature 0 has the value nan",
        ),
        (
            lambda: PackedBatch.from_features(
                [{"input_ids": [1], "attention_mask": [1], "a": [1]}, {"input_ids": [1], "attention_mask": [1], "a": 1}]
            ),
            BatchError,
            "'a' is a list in feature 0 and 1 in feature 1; give lists, or values, to all",
        ),
        (
            lambda: PackedBatch.from_features([{"input_ids": [1], "attention_mask": None}]),
            BatchError,
            "the attention_mask of feature 0 is None; expected a list of 0 and 1",
        ),
        (
            lambda: PackedBatch.from_features({"input_ids": [1]}),
            BatchError,
            "features are of type dict; expected a list",
        ),
        (lambda: PackedBatch.from_features(["a"]), BatchError, "feature 0 is of type str; expected a dict of columns"),
        (lambda: PackedBatch.from_rows([{"input_ids": [1]}]), BatchError, "row 0 is of type dict; expected rows of"),
        (
            lambda: PackedBatch.from_features([{"input_ids": [1, 2], "seq_lengths": 2}]),
            BatchError,
            "column 'seq_lengths' of row 0 is of int64 in 0 dimensions; expected a list",
        ),
        (
            lambda: PackedBatch.from_features([{"input_ids": [1.5, 2], "seq_lengths": [2]}]),
            BatchError,
            "input_ids of row 0 are of float64 in 1 dimensions; expected integers",
        ),
        (
            lambda: PackedBatch.from_features([{"input_ids": [1, 2], "seq_lengths": [2], "a": ["x", "y"]}]),
            BatchError,
            "column 'a' is of object per token; expected numbers: leave it out",
        ),
        (
            lambda: PackedBatch.from_features([{"input_ids": [5, 6], "seq_lengths": [1, 1], "label": [0, 1]}]),
            BatchError,
            "column 'label' may have one value per token or per sequence, since every sequence has one token",
        ),
        *(
            (
                lambda name=name: PackedBatch.from_features([{"input_ids": [5, 6], "seq_lengths": [2], name: [0, 2]}]),
                BatchError,
                f"{name} are computed from the lengths, and are no column; rename it, or leave it out",
            )
            for name in ("cu_seqlens", "sequence_ids")
        ),
        *(
            (
                lambda entry=entry: PackedBatch.from_sequences([[1, 2], entry]),
                BatchError,
                f"input_ids of sequence 1 {says}",
            )
            for entry, says in (
                (b"ab", "has 0 dimensions; expected one, with a value per token"),
                ({5: 1, 6: 2}, "is of type dict; expected a list of numbers or a single value"),
                ({5, 6}, "is of type set; expected a list of numbers or a single value"),
            )
        ),
        (
            lambda: PackedBatch.from_sequences([[1, 2]], columns={"cu_seqlens": [3]}),
            BatchError,
            "cu_seqlens are computed from the lengths",
        ),
        (
            lambda: PackedBatch.from_columns(
                Sequences(seq_lengths=np.array([2]), tokens={"input_ids": np.arange(2), "attention_mask": np.ones(2)})
            ),
            BatchError,
            "attention_mask is computed from the lengths, and is no column; rename it, or leave it out",
        ),
        (
            lambda: PackedBatch.from_features([{"input_ids": [], "seq_lengths": []}]),
            BatchError,
            "a batch needs at least one sequence",
        ),
        (
            lambda: PackedBatch.from_sequences(5),
            BatchError,
            "input_ids are of type int; expected a list with an entry",
        ),
        (lambda: PackedBatch.from_sequences("abc"), BatchError, "input_ids are of type str; expected a list"),
        (
            lambda: PackedBatch.from_sequences([[1]], columns={"a": 5}),
            BatchError,
            "a are of type int; expected a list",
        ),
        (lambda: PackedBatch.from_sequences([[1]]).to("nowhere"), OptionError, "'nowhere' is no torch device"),
        (
            lambda: PackedBatch.from_features([{"input_ids": [1, 2], "attention_mask": [0, 0]}]),
            LengthError,
            "feature 0 has no real token",
        ),
        (
            lambda: PackedBatch.from_features([{"input_ids": [1, 2], "attention_mask": [1]}]),
            BatchError,
            "'input_ids' has 2 values for the 1 of attention_mask in feature 0",
        ),
        (
            lambda: PackedBatch.from_sequences([[1, 2]]).unpack_tokens(np.zeros((3, 3))),
            BatchError,
            r"values per token have the shape \[3, 3\]; expected \[1, 2, ...\]",
        ),
        (
            lambda: PackedBatch.from_sequences([[1, 2]]).unpack_sequences(np.zeros((3, 3))),
            BatchError,
            r"values per sequence have the shape \[3, 3\]; expected \[1, ...\]",
        ),
        (
            lambda: PackedBatch.from_columns([[1, 2]]),
            BatchError,
            "sequences are of type list; expected nopad.sequences",
        ),
        (lambda: PackedBatch({"input_ids": 1}), BatchError, "made of the fields of another one"),
        (
            lambda: PackedBatch.from_sequences([[1], [2]]).with_decoder([[1]], 0),
            BatchError,
            "1 targets for 2 sequences; expected one per sequence",
        ),
    ],
)
def test_refusals(build, error, says):
    with pytest.raises(error, match=says):
        build()


def test_columns_that_the_layout_gives_are_refused():
    for name in ("attention_mask", "position_ids"):
        with pytest.raises(BatchError, match=f"{name} is the layout's, and is no column"):
            PackedBatch.from_sequences([[1, 2]], columns={name: [[1, 1]]})


def test_rows_of_a_dataset_stay_where_they_are(dataset):
    rows = [dataset[at] for at in range(len(dataset))]
    for how in ({"depth": 1}, {"end_to_end": True}):
        with pytest.raises(OptionError, match="rows of a dataset stay the rows they are; give no depth, packs or end"):
            PackedBatch.from_rows(rows, Rows(8, **how))
    more = PackedBatch.from_rows(rows, Rows(8, rows=len(rows) + 2))
    assert more.input_ids.shape == (len(rows) + 2, 8)
    assert not more.input_ids[-2:].any()
    with pytest.raises(LengthError, match="row 0 holds 8 tokens, and 7 is the capacity"):
        PackedBatch.from_rows(rows, Rows(7))


def test_rows_that_are_padded_are_cut_by_their_mask():
    rows = [
        {"input_ids": [1, 2, 3, 0], "seq_lengths": [2, 1], "w": [5, 6, 7, 0], "attention_mask": [1, 1, 1, 0]},
        {"input_ids": [0, 7, 8, 9], "seq_lengths": [1, 2], "w": [0, 1, 2, 3], "attention_mask": [0, 1, 1, 1]},
    ]
    batch = PackedBatch.from_features(rows, form=Rows(8))
    assert [ids.tolist() for ids in batch.unpack_tokens(batch["input_ids"])] == [[1, 2], [3], [7], [8, 9]]
    assert [w.tolist() for w in batch.unpack_tokens(batch["w"])] == [[5, 6], [7], [1], [2, 3]]
    with pytest.raises(
        BatchError, match="seq_lengths of row 0 add up to 3, and it has 4 tokens; give an attention_mask"
    ):
        PackedBatch.from_features([{"input_ids": [1, 2, 3, 4], "seq_lengths": [2, 1]}])


ONE = nopad.Packs(4, None, np.array([0, 1]), np.array([0]))  # not by `pack`: collecting tests should compile nothing


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"packs": ONE, "depth": 1}, "packs say what lies in each row; depth"),
        ({"packs": ONE, "end_to_end": True}, "packs say what lies in each row"),
        ({"packs": ONE, "capacity": 8}, "capacity is 8, and the packs are of 4; leave it out"),
        ({"packs": [[0]]}, "packs are of type list; expected nopad.Packs, as nopad.pack gives"),
        ({"capacity": 4, "end_to_end": True, "depth": 1}, "rows filled end to end have no depth"),
        *(({"capacity": odd}, "capacity must be an integer from 1 to") for odd in (0, -3, 4.5, "8")),
        *(({"capacity": 0, "end_to_end": True}, "capacity must be an integer from 1 to") for _ in range(1)),
        *(({"capacity": 8, "rows": odd}, "rows must be an integer from 1 to .* or None") for odd in (0, -1, 2.5, "2")),
        ({"capacity": 8, "depth": 0}, "depth must be an integer from 1"),
    ],
)
def test_rows_that_cannot_be(how, says):
    with pytest.raises(OptionError, match=says):
        Rows(**how)


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"fill": {"lables": 0}}, "fill names 'lables'; columns with a value per token are input_ids"),
        ({"fill": ["labels"]}, "fill are of type list; expected a dict by the names of columns"),
        ({"fill": {"input_ids": 9}}, "fill names 'input_ids' .9.; the padding of ids is pad_id"),
        ({"fill": {"input_ids": 10**5000}}, "fill names 'input_ids' .an integer of"),
        ({"columns": ["a"]}, "columns are of type list; expected a dict by the names of columns"),
        ({"pad_id": 10**5000}, "padding of input_ids is an integer of 16,610 bits; expected an integer"),
        *(({"pad_id": odd}, f"padding of input_ids is {odd!r}; expected an integer") for odd in ("x", None, 1.5)),
    ],
)
def test_options_that_cannot_be(how, says):
    with pytest.raises(OptionError, match=says):
        PackedBatch.from_sequences([[1, 2]], Rows(4), **how)


def test_a_column_that_is_given_twice():
    once, again = {"x": [[7, 8], [9]]}, {"x": [[1, 2], [3, 4]]}
    with pytest.raises(BatchError, match="'x' is in columns and in sequence_columns; give it in one of them"):
        PackedBatch.from_sequences([[1, 2], [3]], columns=once, sequence_columns=again)


@pytest.mark.parametrize("form", [Rows(4), Flat()])
def test_labels_that_are_booleans_are_ignored_in_padding(form):
    """A boolean holds no -100: padding, and the first tokens of a causal model, counted as true."""
    flags = [np.array([True, False]), np.array([True])]
    made = PackedBatch.from_sequences([[1, 2], [3]], form, columns={"labels": flags, "flag": flags})
    assert made["labels"].tolist() == [[1, 0, 1, -100][: made.layout.shape[1]]]
    assert made["flag"].tolist() == [[True, False, True, False][: made.layout.shape[1]]]
    features = [{"input_ids": [1, 2], "labels": flags[0]}, {"input_ids": [3], "labels": flags[1]}]
    made = PackedBatch.from_features(features, form, causal=True)
    assert made["labels"].tolist() == [[-100, 0, -100, -100][: made.layout.shape[1]]]
    kept = PackedBatch.from_sequences([[1, 2], [3]], form, columns={"labels": flags}, fill={"labels": False})
    assert kept["labels"].dtype == torch.bool


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_padding_of_floats_is_what_they_hold(dtype):
    """Infinity and NaN are values of their own, and no number becomes one of them."""
    most = float(np.finfo(dtype).max)
    columns = {"x": [np.ones(2, dtype)]}
    for fill in (0.5, -3, np.int8(3), most, -most, float("inf"), float("nan")):
        made = PackedBatch.from_sequences([[1, 2]], Rows(4), columns=columns, fill={"x": fill})
        assert made["x"].numpy()[0, 3] == pytest.approx(fill, nan_ok=True)
    for fill in (10**400, -(10**5000), "1", *([1e300, np.float64(-1e300), 10**39] if dtype != np.float64 else [])):
        with pytest.raises(OptionError, match=f"padding of x is .*; expected a number that {dtype.__name__} holds"):
            PackedBatch.from_sequences([[1, 2]], Rows(4), columns=columns, fill={"x": fill})


def test_ids_are_no_column_of_ids():
    for columns in ("columns", "sequence_columns"):
        with pytest.raises(BatchError, match="input_ids are the sequences themselves"):
            PackedBatch.from_sequences([[1, 2]], **{columns: {"input_ids": [[3, 4]]}})


def test_labels_of_several_classes():
    labels = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    batch = PackedBatch.from_sequences([[1], [2, 3], [4, 5, 6]], sequence_columns={"labels": labels}, form=Rows(4))
    assert batch["labels"].shape == (3, 2)
    assert [part.tolist() for part in batch.unpack_sequences(batch["labels"])] == labels.tolist()
    with pytest.raises(
        BatchError, match=r"column 'labels' has 2 entries of shapes \[\(2,\)\]; expected 3 of one shape"
    ):
        PackedBatch.from_sequences([[1], [2], [3]], sequence_columns={"labels": labels[:2]})


def test_a_shape_that_may_be_either_is_said():
    batch = PackedBatch.from_sequences([[1, 2, 3], [4, 5]], Rows(4))
    assert batch.layout.shape == (2, 4)
    values = torch.arange(8.0).reshape(2, 4)
    assert [part.tolist() for part in batch.unpack_sequences(values)] == values.tolist()
    assert [part.tolist() for part in batch.unpack_tokens(values)] == [[0, 1, 2], [4, 5]]
    assert [part.tolist() for part in batch.unpack_tokens(values.numpy())] == [[0, 1, 2], [4, 5]]


@pytest.mark.parametrize("way", ["unpack_tokens", "unpack_sequences"])
def test_what_is_no_array_is_not_unpacked(way):
    from transformers.modeling_outputs import BaseModelOutput

    unpack = getattr(PackedBatch.from_sequences([[1, 2], [3]]), way)
    for odd in ([1, 2, 3], (1,), "abc", None, 3.0):
        with pytest.raises(BatchError, match=rf"a {type(odd).__name__} is no array; give a tensor or a NumPy array"):
            unpack(odd)
    with pytest.raises(BatchError, match=r"a BaseModelOutput is no array; give one of its results: .last_hidden_state"):
        unpack(BaseModelOutput(last_hidden_state=torch.zeros(1, 3, 2)))
    for scalar in (torch.tensor(3.0), np.float64(3.0)):
        with pytest.raises(BatchError, match=r"have the shape \[\]; expected"):
            unpack(scalar)


def test_ids_are_of_one_type():
    batch = PackedBatch.from_sequences([[1, 2], [3]])
    for ids in (batch.input_ids, batch["input_ids"], batch.input_ids, batch.position_ids):
        assert isinstance(ids, torch.Tensor)
        assert ids.dtype == torch.int64


def test_a_batch_keeps_its_dtypes():
    with pytest.raises(OptionError, match="a batch keeps its dtypes"):
        PackedBatch.from_sequences([[1, 2]]).to(torch.float16)


@pytest.mark.parametrize("name", ["label", "label_ids"])
def test_a_label_is_what_models_call_labels(name):
    features = [{"input_ids": [1, 2], name: 3}, {"input_ids": [4], name: 0}]
    batch = PackedBatch.from_features(features)
    assert batch["labels"].tolist() == [3, 0]
    assert name not in batch
    per_token = [{"input_ids": [1, 2], name: [5, 6]}, {"input_ids": [4], name: [7]}]
    rows = PackedBatch.from_features(per_token, form=Rows(4))
    assert rows["labels"].tolist() == [[5, 6, 7, -100]]
    both = PackedBatch.from_features([{"input_ids": [1], name: 3, "labels": 4}])
    assert (both[name].tolist(), both["labels"].tolist()) == ([3], [4])
    assert name in PackedBatch.from_sequences([[1]], columns={name: [3]})  # named by hand, and kept so
    with pytest.raises(BatchError, match="there are label and label_ids, and only one can be the labels; keep one"):
        PackedBatch.from_features([{"input_ids": [1], "label": 3, "label_ids": 4}])


def test_positions_that_the_layout_gives_may_be_given():
    features = [
        {"input_ids": [0, 7, 8], "attention_mask": [0, 1, 1], "position_ids": [9, 0, 1]},
        {"input_ids": [3, 0, 0], "attention_mask": [1, 0, 0], "position_ids": [0, 1, 2]},
    ]
    batch = PackedBatch.from_features(features, form=Rows(4))
    assert batch.position_ids.tolist() == [[0, 1, 0, 0]]
    packs = [{"input_ids": [1, 2, 3], "seq_lengths": [2, 1], "position_ids": [0, 1, 0]}]
    assert PackedBatch.from_features(packs).position_ids.tolist() == [[0, 1, 0]]
    for odd in (
        [{"input_ids": [1, 2], "position_ids": [2, 3]}],
        [{"input_ids": [1, 2, 3], "seq_lengths": [2, 1], "position_ids": [0, 1, 2]}],
        [{"input_ids": [1], "position_ids": 0}],
    ):
        with pytest.raises(BatchError, match=r"position_ids are made by the layout, 0, 1, 2, ... in each sequence"):
            PackedBatch.from_features(odd)


@pytest.mark.parametrize(
    ("column", "says"),
    [
        ({"a": [None, 1]}, r"column 'a' has no value \(None\) for sequence 0; give one to each, or leave it out"),
        ({"a": [["x"], ["y"]]}, "a of sequence 0 is of <U1; expected numbers: leave this column out"),
        ({"a": [[None], [1]]}, "a of sequence 0 has values that are masked or null"),
        ({"a": [[[1], [2, 3]], [1]]}, "a of sequence 0 is no list of numbers"),
        ({"a": [torch.ones(1, requires_grad=True), [1]]}, "a of sequence 0 is no list of numbers"),
        ({"a": [torch.ones(1, dtype=torch.bfloat16, device="meta"), [1]]}, "a of sequence 0 is no list of numbers"),
    ],
)
def test_columns_of_no_numbers(column, says):
    with pytest.raises(BatchError, match=says):
        PackedBatch.from_sequences([[1], [2]], columns=column)


def test_unsigned_ids_stay_what_they_are():
    sequences = [np.array([1, 2], dtype=np.uint64), np.array([3], dtype=np.int64), np.array([4], dtype=np.uint16)]
    assert PackedBatch.from_sequences(sequences).input_ids.tolist() == [[1, 2, 3, 4]]
    large = np.array([1, 2**64 - 1], dtype=np.uint64)
    with pytest.raises(BatchError, match=f"input_ids of sequence 1 holds {2**64 - 1}, which is beyond 64-bit integers"):
        PackedBatch.from_sequences([[1], large])
    for odd in ([2**63, 1], [2**80, 1]):
        with pytest.raises(BatchError):
            PackedBatch.from_sequences([odd])
        with pytest.raises(BatchError):
            PackedBatch.from_sequences([[1], [2]], columns={"a": odd})


@settings(max_examples=150)
@given(
    data=st.data(),
    capacity=st.integers(1, 40),
    depth=st.none() | st.integers(1, 5),
)
def test_few_sequences_are_packed_as_many_are(data, capacity, depth):
    longest = data.draw(st.sampled_from([capacity, min(capacity, 3)]))
    lengths = data.draw(st.lists(st.integers(1, longest), min_size=1, max_size=50))
    planned = nopad.pack(lengths, capacity, depth=depth, algorithm="bfd", order="source")
    assert pack_few(lengths, capacity, depth) == [row.tolist() for row in planned]


def test_many_sequences_are_packed_as_few_are(monkeypatch):
    rng = np.random.default_rng(5)
    sequences = [np.full(n, n) for n in rng.integers(1, 60, 300)]
    many = PackedBatch.from_sequences(sequences, Rows(128))
    monkeypatch.setattr("nopad.batch.form.FEW", 1000)
    few = PackedBatch.from_sequences(sequences, Rows(128))
    assert torch.equal(few.input_ids, many.input_ids)
    assert np.array_equal(few.layout.order, many.layout.order)


def test_an_empty_sequence_is_one_whatever_it_is_given_as():
    for empty in ([], np.array([]), np.array([], dtype=np.int64), torch.tensor([]), torch.tensor([], dtype=torch.long)):
        for sequences in ([[1, 2], empty], [np.array([1, 2]), empty]):
            with pytest.raises(LengthError, match="sequence 1 has no token; leave empty ones out"):
                PackedBatch.from_sequences(sequences)


# What no batch can be built of, in every place where a user may put it.
GARBAGE = [
    *(None, 5, -1, 1.5, float("nan"), True, 10**30, 1j, "x", b"x", {1, 2}, {}, object(), int, lambda: 1),
    *([], [[]], [None], ["a"], [1.5], [{}], [[1], 2], [[1, "a"]], [10**30], range(0), (n for n in [1])),
    *(
        np.array(3),
        np.zeros(0, int),
        np.array([[1, 2]]),
        np.array(["a"]),
        np.array([1.5]),
        np.array([2**63], np.uint64),
    ),
    *(torch.tensor(3), torch.tensor([1.5], requires_grad=True), torch.tensor([1, 2]).to_sparse()),
    *(torch.tensor([1, 2], dtype=torch.bfloat16), torch.tensor([1, 2], device="meta")),
]
PLACES = {
    "sequences": lambda it: PackedBatch.from_sequences(it),
    "a sequence": lambda it: PackedBatch.from_sequences([[1, 2], it]),
    "columns": lambda it: PackedBatch.from_sequences([[1, 2], [3]], columns=it),
    "a column": lambda it: PackedBatch.from_sequences([[1, 2], [3]], columns={"a": it}),
    "an entry": lambda it: PackedBatch.from_sequences([[1, 2], [3]], columns={"a": [0, it]}),
    "first entry": lambda it: PackedBatch.from_sequences([[1, 2], [3]], columns={"a": [it, 0]}),
    "a sequence column": lambda it: PackedBatch.from_sequences([[1, 2], [3]], sequence_columns={"a": it}),
    "its entry": lambda it: PackedBatch.from_sequences([[1, 2], [3]], sequence_columns={"a": [it, it]}),
    "form": lambda it: PackedBatch.from_sequences([[1, 2]], it),
    "rows of a form": lambda it: Rows(4, rows=it),
    "end to end": lambda it: Rows(4, end_to_end=it),
    "packs": lambda it: Rows(4, packs=it),
    "pad_id": lambda it: PackedBatch.from_sequences([[1, 2]], Rows(4), pad_id=it),
    "fill": lambda it: PackedBatch.from_sequences([[1]], Rows(4), columns={"a": [[1.5]]}, fill={"a": it}),
    "features": lambda it: PackedBatch.from_features(it),
    "a feature": lambda it: PackedBatch.from_features([{"input_ids": it, "a": it}]),
    "mask": lambda it: PackedBatch.from_features([{"input_ids": [1, 2], "attention_mask": it}]),
    "lengths": lambda it: PackedBatch.from_features([{"input_ids": [1, 2], "seq_lengths": it}]),
    "mask of a row": lambda it: PackedBatch.from_features(
        [{"input_ids": [1, 2], "seq_lengths": [2], "attention_mask": it}]
    ),
    "rows": lambda it: PackedBatch.from_rows(it),
    "fields": lambda it: PackedBatch(it),
    "values": lambda it: PackedBatch.from_sequences([[1, 2]]).unpack_tokens(it),
    "device": lambda it: PackedBatch.from_sequences([[1, 2]]).to(it),
    "targets": lambda it: PackedBatch.from_sequences([[1, 2]]).with_decoder(it, 1),
    "start id": lambda it: PackedBatch.from_sequences([[1, 2]]).with_decoder([[1]], it),
}


@pytest.mark.parametrize("place", PLACES)
def test_nothing_ends_in_an_error_of_a_library(place):
    """Whatever is given wherever is taken, or refused in our words."""
    refused = 0
    for it in GARBAGE:
        try:
            made = PLACES[place](it)
            if isinstance(made, PackedBatch):
                assert len([made[name] for name in made]) == len(made)  # each can be read
        except NopadError:
            refused += 1
    assert refused >= 5


def test_a_mask_of_another_length_than_its_row():
    row = {"input_ids": [1, 2], "seq_lengths": [1], "attention_mask": [1]}
    with pytest.raises(BatchError, match="attention_mask of row 0 has 1 values for 2 input_ids"):
        PackedBatch.from_features([row])


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int8", "int32", "int64", "float16", "float32", "float64"])
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_labels_of_a_stand_in_are_ignored(dtype, library):
    """Booleans became True, and unsigned integers another label."""
    labels = np.array([1, 0]).astype(dtype)
    batch = PackedBatch.from_sequences([[7, 8], [9]])
    batch["labels"] = torch.from_numpy(labels) if library == "torch" else labels
    found = np.asarray(batch.as_stand_in()["labels"])
    assert found.shape == (2,)
    assert np.isnan(found).all() if dtype.startswith("float") else (found == -100).all()
    assert found.dtype == (np.int64 if dtype in ("bool", "uint8") else dtype)


MASKED = np.ma.array([1, 2, 7], mask=[0, 0, 1])
HIDDEN = {
    "masked": MASKED,
    "masked constant": [1, 2, np.ma.masked],
    "masked among NumPy's": [np.int64(1), np.int64(2), np.ma.masked],
    "Arrow": pa.array([1, 2, None]),
    "chunks of Arrow": pa.chunked_array([[1, 2], [None]]),
    "scalar of Arrow": pa.scalar([1, 2, None]),
    "pandas": pd.Series([1, 2, None], dtype="Int64"),
    "polars": pl.Series([1, 2, None]),
}


@pytest.mark.parametrize("hidden", HIDDEN.values(), ids=HIDDEN)
def test_hidden_values_that_are_missing_are_no_numbers(hidden):
    """Masked padding became tokens, and nulls NaN."""
    missing = r"has values that are masked or null; leave them out \(.*\), or put values there \("
    for made in (
        lambda: PackedBatch.from_sequences([[4, 5], hidden]),
        lambda: PackedBatch.from_sequences([[1, 2, 3]], columns={"y": [hidden]}),
        lambda: PackedBatch.from_sequences([[1]], sequence_columns={"y": [[hidden, hidden]]}),
        lambda: PackedBatch.from_features([{"input_ids": hidden}]),
        lambda: PackedBatch.from_features([{"input_ids": [1, 2, 3], "attention_mask": hidden}]),
        lambda: PackedBatch.from_features([{"input_ids": hidden, "seq_lengths": [3]}]),
        lambda: PackedBatch.from_features([{"input_ids": [1], "pixel_values": [[[hidden]]]}]),
    ):
        with pytest.raises(BatchError, match=missing):
            made()


@pytest.mark.parametrize("single", [MASKED, MASKED.astype(float), [1, 2, np.ma.masked]])
def test_a_masked_value_per_sequence_is_refused(single):
    with pytest.raises(BatchError, match="y of sequence 2 has values that are masked"):
        PackedBatch.from_sequences([[1], [2], [3]], columns={"y": single})


def test_a_masked_array_without_masked_values_is_an_array():
    assert PackedBatch.from_sequences([np.ma.array([1, 2])]).input_ids.tolist() == [[1, 2]]


@pytest.mark.parametrize("index", [[5, 6], [1, 0], ["a", "b"], [0.5, 1.5]])
def test_columns_of_pandas_are_read_by_their_order(index):
    ids, single = pd.Series([[1, 2], [3]], index=index), pd.Series([0.5, 0.1], index=index)
    batch = PackedBatch.from_sequences(ids, columns={"y": single, "z": ids, "w": single.astype(str)})
    assert batch.input_ids.tolist() == batch["z"].tolist() == [[1, 2, 3]]
    assert (batch["y"].tolist(), list(batch["w"])) == ([0.5, 0.1], ["0.5", "0.1"])
    given = {"input_ids": pd.Series([8, 9], index=index), "attention_mask": pd.Series([0, 1], index=index)}
    assert PackedBatch.from_features([given]).input_ids.tolist() == [[9]]


@pytest.mark.parametrize("table", [pd.DataFrame({"a": [1, 2]}), pl.DataFrame({"a": [1, 2]}), pa.table({"a": [1, 2]})])
def test_tables_are_no_sequences(table):
    with pytest.raises(BatchError, match=r"input_ids are of type .*; expected a list with an entry for each"):
        PackedBatch.from_sequences(table)


@pytest.mark.parametrize("made", [pa.scalar, pa.array, deque, tuple, UserList, pl.Series, pd.Series, np.array])
def test_features_of_any_ordered_kind(made):
    features = [
        {"input_ids": made([5, 6, 0]), "attention_mask": made([1, 1, 0]), "y": made([0.5, 1.5, 2.5])},
        {"input_ids": made([7, 8, 9]), "attention_mask": made([0, 1, 1]), "y": made([0.5, 1.5, 2.5])},
    ]
    batch = PackedBatch.from_features(features)
    assert batch.input_ids.tolist() == [[5, 6, 8, 9]]
    assert batch["y"].tolist() == [[0.5, 1.5, 1.5, 2.5]]
    assert batch["y"].dtype == (torch.float32 if made in (deque, tuple, UserList) else torch.float64)


@pytest.mark.parametrize(
    ("kind", "dtype"), [("float16", pa.float16()), ("float32", pa.float32()), ("float64", pa.float64())]
)
def test_floats_of_arrow_pandas_and_polars_keep_their_width(kind, dtype):
    flat, nested = pa.array(np.array([0.5, 1.5], kind), dtype), pa.array([np.array([0.5], kind)] * 2, pa.list_(dtype))
    columns = {"flat": flat, "nested": nested, "scalars": list(flat), "numpy": flat.to_numpy()}
    columns |= {"pandas": pd.Series(flat.to_numpy()), "pandas of arrow": pd.Series(flat, dtype=pd.ArrowDtype(dtype))}
    if kind != "float16":
        columns |= {"polars": pl.Series(flat.to_numpy())}
    batch = PackedBatch.from_sequences([[1], [2]], columns=columns)
    assert {str(batch[name].dtype) for name in columns} == {f"torch.{kind}"}


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, pa.py_buffer])
def test_bytes_are_no_ids(kind):
    says = r"0 dimensions; expected one, .*, got \w+$|arrays of .S2; expected numbers"
    for made in (
        lambda: PackedBatch.from_sequences([[1, 2], kind(b"ab")]),
        lambda: PackedBatch.from_features([{"input_ids": kind(b"ab")}]),
        lambda: PackedBatch.from_sequences([[1]], sequence_columns={"y": [[kind(b"ab")]]}),
    ):
        with pytest.raises(BatchError, match=says):
            made()
    with pytest.raises(BatchError, match="input_ids are of type"):
        PackedBatch.from_sequences(kind(b"ab"))
    assert list(PackedBatch.from_sequences([[1]], columns={"y": [kind(b"ab")]})["y"]) == [b"ab"]


def test_times_in_nanoseconds_are_no_integers():
    times = np.array(["2020-01-01", "2021-01-01"], "M8[ns]")
    assert list(PackedBatch.from_sequences([[1], [2]], columns={"t": times})["t"]) == list(times)


def test_a_list_that_holds_itself_is_refused():
    odd = [1]
    odd[0] = odd
    with pytest.raises(BatchError, match="input_ids of sequence 0 is no list of numbers"):
        PackedBatch.from_sequences([odd])
    with pytest.raises(BatchError, match="y of feature 0 is no list of numbers"):
        PackedBatch.from_features([{"input_ids": [1], "y": (odd,)}])


def test_what_a_library_cannot_read_is_refused():
    time = pa.scalar(2**62, pa.timestamp("s"))
    with pytest.raises(BatchError, match=r"y of feature 0 is no list of numbers or single value \(.*too large"):
        PackedBatch.from_features([{"input_ids": [1], "y": time}])
    texts = pd.Series(["\ud800"], dtype=pd.StringDtype("python"))
    with pytest.raises(BatchError, match=r"y are of type Series, and cannot be read .*surrogates.*; give a list"):
        PackedBatch.from_sequences([[1]], columns={"y": texts})


def test_values_of_numpy_and_tensors_are_not_searched(monkeypatch):
    """A list of a million NumPy integers took two seconds."""
    monkeypatch.setattr(arrays, "_unlabelled", None)
    values = [one for code in "?bhilqBHILQefd" for one in np.ones(2, code)] + [np.str_("a"), np.bytes_(b"a")]
    assert arrays.readable(values, "x") is values
    tensor = torch.ones(2)
    assert np.shares_memory(arrays.readable([tensor], "x")[0], tensor.numpy())


@pytest.mark.parametrize(
    "column",
    [
        pd.Series(pd.period_range("2020-01", periods=2, freq="M")),
        pd.Series(pd.interval_range(0, 2)),
        pd.Series(pd.interval_range(pd.Timedelta(0), pd.Timedelta(days=2))),
    ],
    ids=["periods", "intervals", "intervals of time"],
)
def test_periods_and_intervals_of_pandas_are_objects(column):
    """Periods became the integers 600 and 601."""
    assert list(PackedBatch.from_sequences([[1], [2]], columns={"y": column})["y"]) == list(column)
    for made in (
        lambda: PackedBatch.from_sequences([column]),
        lambda: PackedBatch.from_features([{"input_ids": column}]),
    ):
        with pytest.raises(BatchError, match="input_ids of sequence 0 is of object; expected numbers"):
            made()


def test_structs_and_maps_of_arrow_are_no_lists():
    """A struct became an array of a bound method."""
    struct, pairs = pa.scalar({"a": 1}), pa.scalar([("a", 1)], pa.map_(pa.string(), pa.int64()))
    for odd, kind in ((struct, "StructScalar"), (pairs, "MapScalar")):
        says = f"y of feature 0 is of type {kind}; expected a list of numbers or a single value"
        with pytest.raises(BatchError, match=says):
            PackedBatch.from_features([{"input_ids": [1], "y": odd}])


def test_extension_types_of_arrow_make_their_values():
    raw = bytes(range(16))
    flags = pa.ExtensionArray.from_storage(pa.bool8(), pa.array([1, 0], pa.int8()))
    pairs = pa.ExtensionArray.from_storage(
        pa.fixed_shape_tensor(pa.float32(), [2]), pa.array([[0.5, 1.5]] * 2, pa.list_(pa.float32(), 2))
    )
    columns = {"id": pa.array([raw, raw], pa.uuid()), "flag": flags}
    batch = PackedBatch.from_sequences([[1, 2], [3, 4]], columns=columns, sequence_columns={"pair": pairs})
    assert list(batch["id"]) == [UUID(bytes=raw)] * 2
    assert (batch["flag"].dtype, batch["flag"].tolist()) == (torch.bool, [True, False])
    assert (batch["pair"].dtype, batch["pair"].tolist()) == (torch.float32, [[0.5, 1.5]] * 2)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_a_nested_tensor_is_no_single_sequence(layout):
    nested = torch.nested.nested_tensor([torch.tensor([1, 2]), torch.tensor([3])], layout=layout)
    for made in (
        lambda: PackedBatch.from_features([{"input_ids": nested}]),
        lambda: PackedBatch.from_features([{"input_ids": [1, 2], "attention_mask": nested}]),
        lambda: PackedBatch.from_sequences([nested]),
        lambda: PackedBatch.from_sequences([[1]], columns={"y": [nested]}),
    ):
        with pytest.raises(BatchError, match=r"0 is a nested tensor, of several sequences; give an entry for each"):
            made()
    for take in (lambda: nopad.pack_dataset(nested, 8), lambda: nopad.PackedLoader(nested, tokens=8, last="fill")):
        with pytest.raises(SourceError, match="a nested tensor is no corpus: give a list of its sequences"):
            take()


def test_columns_of_sequences_may_be_of_arrow():
    values = {
        "x": pa.array(["a", "b"]),
        "y": pa.array([1, 2]),
        "z": pa.array([[0.5, 1], [2, 3]]),
        "seq_index": pa.array([4, 5]),
    }
    lengths, ids = np.array([2, 1], np.int32), np.array([7, 8, 9])
    batch = PackedBatch.from_columns(Sequences(seq_lengths=lengths, tokens={"input_ids": ids}, values=values))
    assert (list(batch["x"]), batch["y"].tolist(), batch["z"].tolist()) == (["a", "b"], [1, 2], [[0.5, 1], [2, 3]])
    values = {"y": pa.array([1, None])}
    with pytest.raises(BatchError, match=r"column 'y' has no value \(None\) for sequence 1"):
        PackedBatch.from_columns(Sequences(seq_lengths=lengths, tokens={"input_ids": ids}, values=values))


def test_flash_arguments_are_not_for_targets():
    with pytest.raises(BatchError, match="this batch has targets for a decoder"):
        PackedBatch.from_sequences([[1, 2], [3]]).with_decoder([[4], [5, 6]], 0).as_flash_kwargs()


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view(), pa.binary()])
@pytest.mark.parametrize("form", [lambda texts: texts, list, lambda texts: pa.chunked_array([texts])])
def test_texts_of_arrow_are_no_ids(kind, form):
    """The bytes of "abc" became the ids 97, 98, 99; as a column, they ended in an error of NumPy."""
    texts = pa.array(["abc", "a", "ab"]).cast(kind)
    with pytest.raises(BatchError, match="input_ids of sequence 0 has 0 dimensions"):
        PackedBatch.from_sequences(form(texts))
    with pytest.raises(BatchError, match="0 dimensions"):
        PackedBatch.from_features([{"input_ids": text} for text in texts])
    batch = PackedBatch.from_sequences([[1], [2], [3]], columns={"name": form(texts)})
    assert list(batch["name"]) == texts.to_pylist()


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_lists_of_arrow_and_nested_tensors():
    """A nested tensor has no length, which ended in an internal error of PyTorch."""
    lists = [[5, 6, 7], [8]]
    for lists_of in (pa.array(lists), torch.nested.nested_tensor([torch.tensor(ids) for ids in lists])):
        batch = PackedBatch.from_sequences(lists_of, columns={"again": lists_of})
        assert [ids.tolist() for ids in batch.unpack_tokens(batch["again"])] == lists
        assert batch["input_ids"].tolist() == [[5, 6, 7, 8]]


class Held:
    """An object that NumPy reads, and that has no length."""

    def __init__(self, values):
        self.values = np.array(values)

    def __array__(self, dtype=None, copy=None):
        return self.values


class Raising:
    """An object whose own code raises an error."""

    def __init__(self, error):
        self.error = error

    def __len__(self):
        raise self.error("boom")

    def __array__(self, *_, **__):
        raise self.error("boom")


COLUMN = {"category": [5, None, 7], "Int64": [5, None, 7], "Float64": [5, None, 7], "int64[pyarrow]": [5, None, 7]}
NULLS = {
    **{f"series of {kind}": pd.Series(values, dtype=kind) for kind, values in COLUMN.items()},
    **{f"array of {kind}": pd.Series(values, dtype=kind).array for kind, values in COLUMN.items()},
    **{f"index of {kind}": pd.Index(pd.Series(values, dtype=kind)) for kind, values in COLUMN.items()},
    "arrow": pa.array([5, None, 7]),
    "dictionary of arrow": pa.DictionaryArray.from_arrays(pa.array([0, 1, 2]), pa.array([5, None, 7])),
    "runs of arrow": pa.RunEndEncodedArray.from_arrays([1, 2, 3], pa.array([5.0, None, 7.0])),
    "polars": pl.Series([5, None, 7]),
    "masked": np.ma.array([5, 6, 7], mask=[0, 0, 1]),
    "masked within": [5, np.ma.array(6, mask=True), 7],
    "masked first": [np.ma.array(5, mask=True), 6, 7],
    "the masked constant": [5, np.ma.masked, 7],
    "None": [5, None, 7],
    "None of objects": np.array([5, None, 7], dtype=object),
    "NA": [5, pd.NA, 7],
    "NA first": [pd.NA, 6, 7],
    "NaT": [5, pd.NaT, 7],
    "NaT of NumPy": [5, np.datetime64("NaT"), 7],
}
UNREAD = {
    **{f"raising {error.__name__}": Raising(error) for error in (KeyError, OSError, BufferError, StopIteration)},
    **{f"{type(one).__name__}": one for one in ({5: 1, 6: 2, 7: 3}, {5, 6, 7}, {1: 5, 2: 6, 3: 7}.values())},
    "table": pd.DataFrame([[5, 6, 7]]),
    "longdouble": np.array([5, 6, 7], np.longdouble),
    "sparse": torch.tensor([5, 6, 7]).to_sparse(),
    "meta": torch.ones(3, dtype=torch.long, device="meta"),
    "meta within": [5, torch.tensor(6, device="meta"), 7],
    "record": [5, np.void(b"abc"), 7],
}
ROOMS = {
    "alone": lambda one: PackedBatch.from_sequences([one]),
    "second": lambda one: PackedBatch.from_sequences([[8, 9], one]),
    "column": lambda one: PackedBatch.from_sequences([[1, 2, 3]], columns={"labels": [one]}),
    "array": lambda one: PackedBatch.from_sequences([[1, 2]], sequence_columns={"y": [one]}),
    "feature": lambda one: PackedBatch.from_features([{"input_ids": one}]),
    "padded": lambda one: PackedBatch.from_features([{"input_ids": one, "attention_mask": [0, 1, 1]}]),
    "mask": lambda one: PackedBatch.from_features([{"input_ids": [1, 2, 3], "attention_mask": one}]),
    "padded label": lambda one: PackedBatch.from_features(
        [{"input_ids": [1, 2, 3], "labels": one, "attention_mask": [0, 1, 1]}]
    ),
    "row": lambda one: PackedBatch.from_features([{"input_ids": [1, 2, 3, 4], "seq_lengths": [1, 1, 2], "x": one}]),
}


@pytest.mark.parametrize("room", sorted(ROOMS))
@pytest.mark.parametrize("name", sorted(NULLS | UNREAD))
def test_values_that_are_missing_or_cannot_be_read_are_refused_everywhere(name, room):
    """Nulls of pandas became NaN, masked values tokens, and errors of foreign objects ended in a traceback."""
    says = "masked or null" if name in NULLS else "of (sequence|feature|row) [01] "
    with pytest.raises(BatchError, match=says):
        ROOMS[room]((NULLS | UNREAD)[name])


@pytest.mark.parametrize("name", sorted(NULLS))
def test_single_values_that_are_missing_are_refused(name):
    with pytest.raises(BatchError, match=r"masked or null|has no value \(None\) for sequence [012]"):
        PackedBatch.from_sequences([[1], [2], [3]], columns={"y": NULLS[name]})


@pytest.mark.parametrize(
    "entry",
    [
        Held([5, 6, 7]),
        pa.Tensor.from_numpy(np.array([5, 6, 7])),
        np.array([5, 6, 7], ">u8"),
        np.array([5, 6, 7], dtype=object),
        pd.Series([5, 6, 7], index=[2, 0, 1], dtype="category"),
        pd.Index([5, 6, 7], dtype="int64[pyarrow]"),
        np.ma.array([5, 6, 7]),
        torch.tensor([5, 6, 7], dtype=torch.int32),
    ],
    ids=lambda one: type(one).__name__,
)
def test_whatever_numpy_reads_is_cut_as_its_mask_says(entry):
    """An object without a length kept its padding, and big-endian ids beside others became floats."""
    for batch in (
        PackedBatch.from_features([{"input_ids": entry, "labels": entry, "attention_mask": [0, 1, 1]}]),
        PackedBatch.from_sequences([[6], [7]], columns={"labels": [[6], [7]]}),
    ):
        assert batch["input_ids"].tolist() == batch["labels"].tolist() == [[6, 7]]
    assert PackedBatch.from_sequences([[8, 9], entry])["input_ids"].tolist() == [[8, 9, 5, 6, 7]]


@pytest.mark.parametrize("entry", [[True, False], np.array([True, False]), [5, 6.0], [5.0, 6.0]])
def test_ids_are_integers_in_each_sequence(entry):
    """Booleans beside integers became 0 and 1, and a float that the mask cut off was not seen."""
    with pytest.raises(BatchError, match=r"input_ids must be integers, got (bool|float64) in sequence 1"):
        PackedBatch.from_sequences([[8, 9], entry])
    with pytest.raises(BatchError, match="must be integers"):
        PackedBatch.from_features([{"input_ids": entry, "attention_mask": [1, 0]}])


def test_sequences_are_found_by_their_place():
    sequences = [[5, 6, 7], [8], [9, 4]]
    for kind in ("object", pd.ArrowDtype(pa.list_(pa.int64()))):
        given = pd.Series(sequences, index=[2, 0, 1], dtype=kind)
        batch = PackedBatch.from_sequences(given, columns={"again": given})
        assert [ids.tolist() for ids in batch.unpack_tokens(batch["again"])] == sequences
        assert batch["input_ids"].tolist() == [[5, 6, 7, 8, 9, 4]]


def test_a_dataset_of_torch_is_read_by_its_length():
    """It has no `__iter__`, and one whose entries are computed has one for any index."""

    class Computed(Dataset):
        def __len__(self):
            return 3

        def __getitem__(self, index):
            return list(range(5, 6 + index))

    batch = PackedBatch.from_sequences(Computed())
    assert batch.layout.seq_lengths.tolist() == [1, 2, 3]

    class Endless:
        def __getitem__(self, index):
            return [5]

    with pytest.raises(BatchError, match="are of type Endless; expected a list with an entry for each sequence"):
        PackedBatch.from_sequences(Endless())
