"""Features with images: whose they are, in which order a batch holds them, and what is no image of a sequence."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
import torch

import nopad
from nopad.batch.images import images_of
from nopad.errors import BatchError

LENGTHS = [3, 6, 2, 5]


def grid_features(n=4):
    """Sequence n has n images of n + 1 patches each; each value says of which image it is."""
    found = []
    for number in range(n):
        ids = [7] * LENGTHS[number]
        grids = [[1, 1, number + 1]] * number
        pixels = [[10 * number + image] * 2 for image in range(number) for _ in range(number + 1)]
        images = {"pixel_values": np.array(pixels, dtype=np.float32), "image_grid_thw": np.array(grids)}
        found.append({"input_ids": ids, **(images if number else {})})
    return found


def drawn(batch):
    """Which images a batch holds, in order, without repeats."""
    return list(dict.fromkeys(batch["pixel_values"][:, 0].tolist()))


def test_images_lie_as_their_sequences_do():
    batch = nopad.PackedBatch.from_features(grid_features())
    assert batch.images.tolist() == [0, 1, 2, 3]
    assert drawn(batch) == [10, 20, 21, 30, 31, 32]
    assert batch["image_grid_thw"].tolist() == [[1, 1, 2]] + [[1, 1, 3]] * 2 + [[1, 1, 4]] * 3
    packs = nopad.PackedBatch.from_features(grid_features(), nopad.Rows(8)).layout
    batch = nopad.PackedBatch.from_features(grid_features(), nopad.Rows(8))
    assert packs.order.tolist() == [0, 3, 1, 2]
    assert drawn(batch) == [30, 31, 32, 10, 20, 21]
    assert batch.images.tolist() == [0, 1, 2, 3]  # as for all that is per sequence, in the order given
    assert batch["image_grid_thw"][:, 2].tolist() == [4, 4, 4, 2, 3, 3]


def test_images_of_one_size():
    pixels = [np.full((n, 3, 2, 2), n, dtype=np.float32) for n in (2, 0, 1)]
    features = [{"input_ids": [1] * 4, "pixel_values": one} for one in pixels]
    batch = nopad.PackedBatch.from_features(features)
    assert batch.images.tolist() == [2, 0, 1]
    assert batch["pixel_values"].shape == (3, 3, 2, 2)
    assert "image_grid_thw" not in batch
    given = [{"input_ids": [1] * 4, "pixel_values": [np.zeros((3, 2, 2))] * 2}, {"input_ids": [1], "pixel_values": []}]
    assert nopad.PackedBatch.from_features(given)["pixel_values"].shape == (2, 3, 2, 2)


@pytest.mark.parametrize("form", [nopad.Flat(), nopad.Rows(8), nopad.Rows(9, end_to_end=True)], ids=str)
def test_images_are_found_again(form):
    batch = nopad.PackedBatch.from_features(grid_features(), form)
    for found, given in zip(images_of(batch), grid_features(), strict=True):
        assert set(found) == set(given) - {"input_ids"}
        for name, value in found.items():
            assert value.tolist() == given[name].tolist()
    given = [{"input_ids": [1], "pixel_values": np.full((n, 1, 2, 2), n)} for n in (2, 0, 1)]
    found = images_of(nopad.PackedBatch.from_features(given))
    assert [one["pixel_values"].shape[0] if one else 0 for one in found] == [2, 0, 1]
    assert images_of(nopad.PackedBatch.from_sequences([[1], [2]])) == [{}, {}]


def test_tensors_keep_their_gradients():
    torch = pytest.importorskip("torch")
    pixels = torch.ones(2, 3, 2, 2, requires_grad=True)
    batch = nopad.PackedBatch.from_features([{"input_ids": [5, 6], "pixel_values": pixels}, {"input_ids": [1]}])
    batch.to("cpu")["pixel_values"].sum().backward()
    assert pixels.grad.sum() == 24


def test_without_images_nothing_is_added():
    features = [{"input_ids": [1, 2], "pixel_values": None}, {"input_ids": [3]}]
    batch = nopad.PackedBatch.from_features(features)
    assert "pixel_values" not in batch
    assert batch.images.tolist() == [0, 0]
    assert batch.layout.images is None
    assert nopad.PackedBatch.from_sequences([[1], [2, 3]]).images.tolist() == [0, 0]


def test_what_is_kept_with_the_images():
    batch = nopad.PackedBatch.from_features(
        [feature | {"labels": feature["input_ids"]} for feature in grid_features()], nopad.Rows(8), causal=True
    )
    for other in (batch.as_stand_in(), batch.to("cpu"), nopad.PackedBatch(dict(batch)), batch.sources):
        assert other.images.tolist() == [0, 1, 2, 3]
        assert drawn(other) == [30, 31, 32, 10, 20, 21]


def test_columns_of_one_row():
    """As processors give them, also for a single text."""
    torch = pytest.importorskip("torch")
    features = [
        {"input_ids": torch.tensor([[7, 8, 0]]), "attention_mask": torch.tensor([[1, 1, 0]]), "label": 1},
        {"input_ids": [[5, 6, 7]], "attention_mask": [[1, 1, 1]], "label": 0},
        {"input_ids": np.array([[4]]), "attention_mask": np.array([[1]]), "label": 2},
    ]
    batch = nopad.PackedBatch.from_features(features)
    assert batch.input_ids.tolist() == [[7, 8, 5, 6, 7, 4]]
    assert batch["labels"].tolist() == [1, 0, 2]
    three = {"input_ids": [[1, 2, 3]], "image_grid_thw": [[1, 1, 1]], "pixel_values": [[0.5, 0.5, 0.5]]}
    batch = nopad.PackedBatch.from_features([three])  # a row of a grid is no row of a column
    assert batch["image_grid_thw"].tolist() == [[1, 1, 1]]
    with pytest.raises(BatchError, match="input_ids of sequence 0 has 2 dimensions"):
        nopad.PackedBatch.from_features([{"input_ids": np.ones((2, 3), dtype=int)}])


PIXELS = np.zeros((4, 2), dtype=np.float32)
GRIDS = np.array([[1, 2, 2]])
ITSELF = []
ITSELF.append(ITSELF)
REFUSED = {
    "a video without its grid": (
        {"pixel_values_videos": PIXELS},
        r"pixel_values_videos of feature 1 are \[4, 2\], without video_grid_thw; expected patches",
    ),
    "a video of frames": (
        {"pixel_values_videos": np.zeros((1, 3, 2, 2))},
        r"are \[1, 3, 2, 2\], without video_grid_thw",
    ),
    "a grid of a video": (
        {"video_grid_thw": GRIDS},
        "feature 1 has video_grid_thw and no pixel_values_videos; give bo",
    ),
    "seconds alone": ({"second_per_grid_ts": [1.0]}, "feature 1 has second_per_grid_ts and no pixel_values_videos"),
    "patches of a video too few": (
        {"pixel_values_videos": PIXELS[:3], "video_grid_thw": GRIDS},
        r"pixel_values_videos of feature 1 are \[3, 2\], and the 1 videos of its video_grid_thw .* have 4 patches",
    ),
    "seconds of two videos": (
        {"pixel_values_videos": PIXELS, "video_grid_thw": GRIDS, "second_per_grid_ts": [1.0, 2.0]},
        r"second_per_grid_ts of feature 1 are \[2\]; expected one number per video, \[1\]",
    ),
    "seconds below 0": (
        {"pixel_values_videos": PIXELS, "video_grid_thw": GRIDS, "second_per_grid_ts": [-1.0]},
        r"second_per_grid_ts of feature 1 are \[-1.0\]; expected seconds, from 0",
    ),
    "seconds in words": (
        {"pixel_values_videos": PIXELS, "video_grid_thw": GRIDS, "second_per_grid_ts": ["1"]},
        "second_per_grid_ts of feature 1 are of <U1; expected numbers",
    ),
    "tiles": ({"pixel_values": PIXELS, "image_sizes": [[2, 2]]}, "feature 1 has image_sizes"),
    "a grid alone": ({"image_grid_thw": GRIDS}, "feature 1 has image_grid_thw and no pixel_values"),
    "patches alone": ({"pixel_values": PIXELS}, r"pixel_values of feature 1 are \[4, 2\]; expected \[images, channels"),
    "patches too few": (
        {"pixel_values": PIXELS[:3], "image_grid_thw": GRIDS},
        r"pixel_values of feature 1 are \[3, 2\], and the 1 images .* \[\[1, 2, 2\]\] have 4 patches; expected",
    ),
    "a flat grid": (
        {"pixel_values": PIXELS, "image_grid_thw": [1, 2, 2]},
        r"image_grid_thw of feature 1 are \[1, 2, 2",
    ),
    "an empty grid": ({"pixel_values": PIXELS, "image_grid_thw": [[0, 2, 2]]}, "expected integers .* from 1"),
    "texts": ({"pixel_values": ["cat.png"], "image_grid_thw": GRIDS}, "pixel_values of feature 1 are of <U7"),
    "beyond float32": (
        {"pixel_values": [[1e39, 0.0]] * 4, "image_grid_thw": GRIDS},
        r"'pixel_values' holds 1e\+39, which is beyond float32",
    ),
    "ragged": ({"pixel_values": [[1.0], [1.0, 2.0]]}, "pixel_values of feature 1 are no array of numbers"),
    "of gradients": (
        {"pixel_values": [torch.ones(1, requires_grad=True)]},
        "pixel_values of feature 1 is no list of numbers or single value .*requires grad",
    ),
    "a list that holds itself": ({"pixel_values": ITSELF}, "pixel_values of feature 1 is no list of numbers"),
    "rows": (
        {"pixel_values": PIXELS, "image_grid_thw": GRIDS, "seq_lengths": [1, 1]},
        "feature 1 is a row of a packed dataset and has pixel_values",
    ),
}


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_is_no_image_of_a_sequence(name):
    given, says = REFUSED[name]
    with pytest.raises(BatchError, match=says):
        nopad.PackedBatch.from_features([{"input_ids": [1, 2]}, {"input_ids": [1, 2], **given}])


@pytest.mark.parametrize(
    ("other", "says"),
    [
        ({"pixel_values": np.zeros((4, 3), dtype=np.float32), "image_grid_thw": GRIDS}, r"\[4, 3\] of float32, and th"),
        ({"pixel_values": np.zeros((4, 2)), "image_grid_thw": GRIDS}, "of float64, and those of feature 0"),
        ({"pixel_values": np.zeros((1, 3, 2, 2), dtype=np.float32)}, "feature 0 has image_grid_thw and feature 1 has"),
    ],
)
def test_images_that_do_not_go_together(other, says):
    first = {"input_ids": [1, 2], "pixel_values": PIXELS, "image_grid_thw": GRIDS}
    with pytest.raises(BatchError, match=says):
        nopad.PackedBatch.from_features([first, {"input_ids": [1, 2], **other}])


@pytest.mark.parametrize("kind", ["int8", "uint8", "int16", "int32", "uint64"])
@pytest.mark.parametrize("of", [np, torch], ids=["arrays", "tensors"])
def test_grids_of_any_integers_are_int64(of, kind):
    """Vision towers take no others, and two features may have different ones."""
    grids = np.array([[1, 12, 12]])
    pixels = np.zeros((144, 2), dtype=np.float32)
    other = grids.astype(kind)
    if of is torch:
        pixels, grids, other = torch.tensor(pixels), torch.tensor(grids), torch.tensor(other)
    features = [{"input_ids": [1], "pixel_values": pixels, "image_grid_thw": one} for one in (grids, other)]
    found = nopad.PackedBatch.from_features(features)["image_grid_thw"]
    assert found.tolist() == [[1, 12, 12]] * 2
    assert str(found.dtype).removeprefix("torch.") == "int64"


def test_tensors_that_are_on_other_devices():
    videos = {"pixel_values_videos": torch.tensor(PIXELS), "video_grid_thw": GRIDS}
    nowhere = {**videos, "pixel_values_videos": torch.tensor(PIXELS, device="meta")}
    with pytest.raises(BatchError, match="pixel_values_videos of feature 1 are on meta, and those of feature 0 on cpu"):
        nopad.PackedBatch.from_features([{"input_ids": [1], **videos}, {"input_ids": [1], **nowhere}])
    seconds = torch.ones(1, device="meta")
    with pytest.raises(BatchError, match="second_per_grid_ts of feature 0 cannot be read"):
        nopad.PackedBatch.from_features([{"input_ids": [1], **videos, "second_per_grid_ts": seconds}])


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_are_no_pixel_values():
    nested = torch.nested.nested_tensor([torch.ones(3, 2, 2), torch.ones(3, 4, 4)])
    with pytest.raises(BatchError, match="pixel_values of feature 0"):
        nopad.PackedBatch.from_features([{"input_ids": [1, 2], "pixel_values": nested}])


def test_a_null_of_arrow_is_no_image():
    images = {"pixel_values": pa.scalar(None, pa.list_(pa.float32())), "image_sizes": pa.scalar(None)}
    assert nopad.PackedBatch.from_features([{"input_ids": [1, 2], **images}])["input_ids"].tolist() == [[1, 2]]
