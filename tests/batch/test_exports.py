from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nopad import Flat, PackedBatch, Rows
from nopad.errors import BatchError, OptionError

SEQUENCES = st.lists(st.lists(st.integers(1, 99), min_size=1, max_size=9), min_size=1, max_size=20)


def filled(rows, width):
    """Rows of sequences, as Grain fills a row: one sequence after the other, numbered from 1, zeros behind."""
    out = {name: [] for name in ("values", "segments", "positions")}
    for row in rows:
        lines = [(v, n, p) for n, sequence in enumerate(row, 1) for p, v in enumerate(sequence)]
        lines += [(0, 0, 0)] * (width - len(lines))
        for name, column in zip(out, zip(*lines, strict=True), strict=True):
            out[name].append(list(column))
    return out


@pytest.mark.parametrize("form", [Flat(), Rows(12), Rows(10, depth=2), Rows(9, rows=25)], ids=repr)
@given(sequences=SEQUENCES)
def test_grain_would_give_the_same(form, sequences):
    batch = PackedBatch.from_sequences(sequences, form, columns={"labels": sequences}, fill={"labels": 0})
    width = batch.layout.shape[1]
    starts = batch.layout.starts.tolist()
    rows = [[] for _ in range(batch.layout.shape[0])]
    for start, sequence in sorted(zip(starts, sequences, strict=True)):
        rows[start // width].append(sequence)
    expected = filled(rows, width)
    found = batch.as_grain({"input_ids": "inputs"})
    assert list(found) == [f"{one}{end}" for one in ("inputs", "labels") for end in ("", "_segment_ids", "_positions")]
    for feature in ("inputs", "labels"):
        assert found[feature].tolist() == expected["values"]
        assert found[f"{feature}_segment_ids"].tolist() == expected["segments"]
        assert found[f"{feature}_positions"].tolist() == expected["positions"]
        assert found[f"{feature}_segment_ids"].dtype == found[f"{feature}_positions"].dtype == np.int32
    assert batch.segment_ids.tolist() == expected["segments"]


def test_columns_of_every_kind():
    columns = {"labels": [[1, 2], [3]], "score": [0.5, 1.5], "name": ["a", "b"]}
    batch = PackedBatch.from_sequences([[7, 8], [9]], Rows(3), columns=columns)
    before = batch.as_grain()
    batch["input_ids"], batch["labels"]  # are torch tensors from now on
    batch["more"] = 3
    after = batch.as_grain()
    assert {name: array.tolist() for name, array in before.items()} == {
        name: array.tolist() for name, array in after.items() if name != "more"
    }
    assert all(isinstance(array, np.ndarray) for array in after.values())
    assert (after["score"].tolist(), after["name"].tolist(), after["more"].tolist()) == ([0.5, 1.5], ["a", "b"], 3)
    assert "score_segment_ids" not in after


def test_a_column_per_sequence_has_no_segments_whatever_its_shape():
    columns = {"y": [[1.0, 2.0], [3.0, 4.0]]}
    batch = PackedBatch.from_sequences([[1, 2], [3, 4]], Rows(2), sequence_columns=columns)
    assert batch["y"].shape == batch.input_ids.shape
    copies = [batch, PackedBatch(dict(batch)), batch.to("cpu"), batch.as_stand_in(), pickle.loads(pickle.dumps(batch))]
    for one in copies:
        assert list(one.as_grain()) == ["input_ids", "input_ids_segment_ids", "input_ids_positions", "y"]
    features = [{"input_ids": [1, 2], "labels": [0.5, 1]}, {"input_ids": [3, 4], "labels": [2.5, 3]}]
    assert "labels_segment_ids" in PackedBatch.from_features(features, Rows(2)).as_grain()
    batch["more"] = batch.input_ids  # nothing but its shape tells what it is
    assert "more_segment_ids" in batch.as_grain()


def test_a_table_of_images_has_no_segments():
    """``image_grid_thw`` is [images, 3]: as many as slots here."""
    picture = {"pixel_values": np.zeros((4, 12), np.float32), "image_grid_thw": np.array([[1, 2, 2]])}
    batch = PackedBatch.from_features([{"input_ids": [[1, 2, 3]], **picture}], Rows(3))
    assert batch["image_grid_thw"].shape == batch.input_ids.shape
    assert "image_grid_thw_segment_ids" not in batch.as_grain()


def test_a_decoder_has_segments_of_its_own():
    batch = PackedBatch.from_sequences([[7, 8], [9]], Rows(4)).with_decoder([[1], [2, 3, 4]], 5, Flat())
    found = batch.as_grain({"decoder_input_ids": "targets"})
    assert found["input_ids_segment_ids"].tolist() == [[1, 1, 2, 0]]
    assert found["targets"].tolist() == [[5, 5, 2, 3]]
    assert found["targets_segment_ids"].tolist() == found["labels_segment_ids"].tolist() == [[1, 2, 2, 2]]


def test_a_stand_in_is_all_padding():
    found = PackedBatch.from_sequences([[7, 8], [9]], Rows(4)).as_stand_in().as_grain()
    assert found["input_ids_segment_ids"].tolist() == [[0, 0, 0, 0]]


def test_the_targets_of_a_stand_in_are_all_padding_too():
    batch = PackedBatch.from_sequences([[7, 8], [9]]).with_decoder([[1], [2, 3]], 5, Rows(4)).as_stand_in()
    assert (batch.weight, batch.sources.weight, batch.targets.weight) == (0, 0, 0)
    for found in (batch.as_grain(), batch.targets.as_grain()):
        assert not any(found[name].any() for name in found if name.endswith("_segment_ids"))
        assert found["labels_segment_ids"].shape == (1, 4)


def test_what_has_no_such_names_is_refused():
    batch = PackedBatch.from_sequences([[7, 8], [9]], columns={"labels": [[1, 2], [3]]})
    with pytest.raises(OptionError, match="names has 'inputs', which is no column of this batch: input_ids, labels"):
        batch.as_grain({"inputs": "x"})
    with pytest.raises(OptionError, match=r"names has 'attention_mask', which is no column of this batch: input_ids"):
        batch.as_grain({"attention_mask": "mask"})
    with pytest.raises(OptionError, match="two columns would be called 'labels'"):
        batch.as_grain({"input_ids": "labels"})
    with pytest.raises(OptionError, match="names are of type list"):
        batch.as_grain(["inputs"])
    crossing = PackedBatch.from_sequences([[7, 8], [9, 1, 2]], Rows(4, end_to_end=True))
    for refused in (crossing.as_grain, lambda: crossing.segment_ids):
        with pytest.raises(BatchError, match="rows filled end to end have no numbers of sequences by row"):
            refused()


def test_numbers_of_sequences_for_hybrid_models():
    batch = PackedBatch.from_sequences([[7, 8], [9]])
    assert "seq_idx" not in batch.as_flash_kwargs()
    found = batch.as_flash_kwargs(seq_idx=True)["seq_idx"]
    assert found.tolist() == [[0, 0, 1]]
    assert found.dtype == torch.int32
    assert "segment_ids" not in batch  # no model gets them as its mask by mistake


def test_as_transformers_collator_names_them():
    """The judge is transformers' own collator."""
    transformers = pytest.importorskip("transformers")
    sequences = [[7, 8, 9], [5], [1, 2]]
    theirs = transformers.DataCollatorWithFlattening(return_flash_attn_kwargs=True, return_seq_idx=True)(
        [{"input_ids": one, "labels": one} for one in sequences]
    )
    features = [{"input_ids": one, "labels": one} for one in sequences]
    ours = PackedBatch.from_features(features, causal=True).as_flash_kwargs(seq_idx=True)
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(ours[name], value), name
            assert ours[name].dtype == value.dtype, name
        else:
            assert ours[name] == value


def test_embeddings_in_bfloat16_become_float32_as_numpy_has_none():
    vectors = torch.tensor([[1.5, 2.0], [3.0, 4.0]], dtype=torch.bfloat16, requires_grad=True)
    found = PackedBatch.from_embeddings([vectors]).as_grain()
    assert found["inputs_embeds"].dtype == np.float32
    assert found["inputs_embeds"].tolist() == [[[1.5, 2.0], [3.0, 4.0]]]
