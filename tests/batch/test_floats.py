"""Floats in batches: tensors and arrays keep their dtype, Python floats and stored data are float32."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from datasets import Dataset

from nopad import Flat, PackedBatch, PackedLoader, Rows, open_packed, open_source, pack_corpus, pack_dataset
from nopad.corpus import CorpusOptions
from nopad.errors import BatchError
from nopad.loading import Mixture
from nopad.sequences import Sequences

IDS = [[7, 8, 9], [5, 6]]
KINDS = [
    (lambda value: value, torch.float32),
    (lambda value: np.array(value, np.float16), torch.float16),
    (lambda value: np.array(value, np.float32), torch.float32),
    (lambda value: np.array(value), torch.float64),
    (lambda value: torch.tensor(value, dtype=torch.bfloat16), torch.float32),
    (lambda value: torch.tensor(value, dtype=torch.float16), torch.float16),
    (lambda value: torch.tensor(value), torch.float32),
    (lambda value: torch.tensor(value, dtype=torch.float64), torch.float64),
]


@pytest.mark.parametrize(("made", "dtype"), KINDS)
@pytest.mark.parametrize("form", [Flat(), Rows(4)])
def test_floats_keep_their_dtype_and_python_floats_become_float32(made, dtype, form):
    per_token, single = [[0.5, 0.25, 3.0], [1.0, 2.0]], [0.5, -1.0]
    features = [
        {"input_ids": ids, "weights": made(more), "labels": made(one)}
        for ids, more, one in zip(IDS, per_token, single, strict=True)
    ]
    columns = {"weights": [made(more) for more in per_token], "labels": [made(one) for one in single]}
    vectors = {"targets": [made([0.5, 1.0]), made([1.5, 2.0])]}
    for batch in (
        PackedBatch.from_features(features, form),
        PackedBatch.from_sequences(IDS, form, columns=columns, sequence_columns=vectors),
    ):
        assert {batch["weights"].dtype, batch["labels"].dtype} == {dtype}
        assert batch["labels"].tolist() == single
        assert [one.tolist() for one in batch.unpack_tokens(batch["weights"])] == per_token
    assert batch["targets"].dtype == dtype
    assert batch["targets"].tolist() == [[0.5, 1.0], [1.5, 2.0]]


def test_integers_among_floats_do_not_widen_them():
    columns = {"weights": [[1, 2, 3], [0.5, 1]], "labels": [1, 0.5]}
    batch = PackedBatch.from_sequences(IDS, columns=columns, sequence_columns={"targets": [[1, 2], [0.5, 1]]})
    assert {batch[name].dtype for name in ("weights", "labels", "targets")} == {torch.float32}
    features = [{"input_ids": [7, 8, 9], "seq_lengths": [1, 2], "scores": scores} for scores in ([1, 2], [0.5, 1])]
    assert PackedBatch.from_features(features)["scores"].dtype == torch.float32


def test_the_widest_of_several_dtypes_is_kept():
    mixed = PackedBatch.from_sequences(IDS, columns={"labels": [np.float16(1), np.float32(0.5)]})
    assert mixed["labels"].dtype == torch.float32
    mixed = PackedBatch.from_sequences(IDS, columns={"labels": [0.5, np.float64(0.1)]})
    assert mixed["labels"].tolist() == [0.5, 0.1]


def test_integers_are_still_int64():
    batch = PackedBatch.from_sequences(IDS, columns={"kinds": np.array([1, 2], np.int8), "marks": [[1, 2, 3], [4, 5]]})
    assert {batch["kinds"].dtype, batch["marks"].dtype} == {torch.int64}


def test_stored_integers_are_int64_at_every_door(tmp_path):
    """Labels per sequence that a table has as int8 stayed int8, which PyTorch's losses refuse."""
    ids = [[7, 8, 9], [5, 6], [1, 2, 3, 4]]
    table = pa.table({"input_ids": ids, "kind": pa.array([1, 2, 3], pa.int8()), "odd": pa.array([1, 2, 3], pa.uint8())})
    pq.write_table(table, tmp_path / "table.parquet")
    pack_corpus(open_source(tmp_path / "table.parquet"), tmp_path / "packed", CorpusOptions(capacity=16))
    opened = open_packed(tmp_path / "packed")
    assert opened[0]["kind"].dtype == np.int8  # as stored
    batches = [
        PackedBatch.from_rows([opened[0]]),
        PackedBatch.from_features([opened.to_hf()[0]]),
        *PackedLoader(opened, rows=1),
        *PackedLoader(opened, 16, rows=1),
        *PackedLoader(tmp_path / "table.parquet", 16, rows=1),
    ]
    assert len(batches) == 5
    for batch in batches:
        assert {batch[name].dtype for name in ("input_ids", "kind", "odd")} == {torch.int64}


@pytest.mark.parametrize("columns", [{"labels": [1e300, 0.0]}, {"labels": [[0.0, 1e300, 0.0], [0.0, 0.0]]}])
def test_a_python_float_beyond_float32_is_refused(columns):
    with pytest.raises(BatchError, match=r"'labels' holds 1e\+300, which is beyond float32; give it as a float64"):
        PackedBatch.from_sequences(IDS, columns=columns)
    held = [np.array(value) for value in columns["labels"]]
    assert PackedBatch.from_sequences(IDS, columns={"labels": held})["labels"].max() == 1e300


def test_infinity_and_nan_are_kept():
    labels = PackedBatch.from_sequences(IDS, columns={"labels": [float("inf"), float("nan")]})["labels"]
    assert labels[0] == torch.inf
    assert labels[1].isnan()
    assert labels.dtype == torch.float32


def test_stored_data_have_float32_at_every_door(tmp_path):
    records = [
        {"input_ids": ids, "labels": 0.1, "weights": [0.5] * len(ids)} for ids in ([7, 8, 9], [5, 6], [1, 2, 3, 4])
    ]
    lines = tmp_path / "lines.jsonl"
    lines.write_text("".join(json.dumps(record) + "\n" for record in records))
    packed = pack_dataset(records, 8)
    assert packed[0]["labels"].dtype == np.float64  # as stored
    pack_corpus(open_source(lines), tmp_path / "packed", CorpusOptions(capacity=8))
    opened = open_packed(tmp_path / "packed")
    batches = [
        PackedBatch.from_rows([packed[0]]),
        PackedBatch.from_features([packed.to_hf()[0]]),
        *PackedLoader(opened, rows=1),
        *PackedLoader(opened, 8, rows=1),
        *PackedLoader(records, 8, rows=1),
        *PackedLoader(lines, 8, rows=1),
        next(iter(PackedLoader(Mixture({"a": records, "b": lines}), 8, rows=1))),
        *PackedLoader(Dataset.from_list(records).to_iterable_dataset(), 8, rows=1, exhausted="stop"),
    ]
    assert len(batches) > 7
    for batch in batches:
        assert {batch["labels"].dtype, batch["weights"].dtype} == {torch.float32}
        assert batch["labels"].eq(torch.tensor(0.1)).all()


def test_float64_arrays_in_memory_stay_exact():
    made = Sequences(
        seq_lengths=np.array([3, 2], np.int32),
        tokens={"input_ids": np.arange(5), "weights": np.full(5, 0.1)},
        values={"labels": np.array([0.1, 0.2])},
    )
    (batch,) = PackedLoader(made, 8, rows=1)
    assert {batch["labels"].dtype, batch["weights"].dtype} == {torch.float64}
    assert sorted(batch["labels"].tolist()) == [0.1, 0.2]


@pytest.mark.parametrize("loss", ["mse_loss", "huber_loss", "binary_cross_entropy_with_logits"])
def test_losses_of_python_floats_compute_in_float32(loss):
    features = [{"input_ids": ids, "label": 0.5} for ids in IDS]
    logits = torch.tensor([0.25, 2.0], requires_grad=True)
    found = getattr(torch.nn.functional, loss)(logits, PackedBatch.from_features(features)["labels"])
    found.backward()
    assert found.dtype == logits.grad.dtype == torch.float32
