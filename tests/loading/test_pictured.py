"""A loader over sequences with images: each batch has them in its rows' order, and results are those alone."""

from __future__ import annotations

import copy
import os
import pickle

import datasets
import numpy as np
import pytest
import torch
import transformers as t
from hypothesis import given, settings
from hypothesis import strategies as st

import nopad
from nopad.errors import LengthError, OptionError, PlanMismatchError, SourceError
from nopad.loading import Mixture, causal
from nopad.loading.sources import open_tokens

IMAGE, START, END = 50, 51, 52
TEXT = {
    "vocab_size": 60,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "intermediate_size": 32,
    "max_position_embeddings": 96,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


def reader():
    torch.manual_seed(0)
    rope = {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 10000.0}
    eye = {"depth": 1, "embed_dim": 16, "hidden_size": 16, "num_heads": 2, "mlp_ratio": 2, "patch_size": 4}
    marks = {"image_token_id": IMAGE, "vision_start_token_id": START, "vision_end_token_id": END, "video_token_id": 53}
    config = t.Qwen2VLConfig(vision_config=eye, text_config={**TEXT, "rope_parameters": rope}, **marks)
    return t.Qwen2VLForConditionalGeneration(config).eval()


def sample(number, text, *grids):
    """What a processor gives for one text with images; grids are their height and width in patches."""
    draw = torch.Generator().manual_seed(number)
    ids = torch.randint(5, 49, (text,), generator=draw).tolist()
    for height, width in grids:
        ids += [START, *[IMAGE] * (height * width // 4), END]
    row = torch.tensor([ids])
    made = {"input_ids": row, "attention_mask": torch.ones_like(row), "mm_token_type_ids": (row == IMAGE).int()}
    made["labels"] = torch.where(row == IMAGE, -100, row)
    if grids:
        patches = sum(height * width for height, width in grids)
        made["pixel_values"] = torch.randn(patches, 96, generator=draw)
        made["image_grid_thw"] = torch.tensor([(1, *grid) for grid in grids])
    return made


SAMPLES = [
    sample(0, 3, (2, 4), (2, 2)),
    sample(1, 6),
    sample(2, 2, (4, 4)),
    sample(3, 1),
    sample(4, 4, (2, 2), (2, 2), (2, 2)),
    sample(5, 9, (6, 2)),
    sample(6, 2),
    sample(7, 5, (2, 2)),
]


def video(number, text, *videos, seconds=None):
    """The same for a text with videos; each is its steps, height and width, and `seconds` are those between steps."""
    made = sample(number, text)
    ids = made["input_ids"][0].tolist()
    for steps, height, width in videos:
        ids += [START, *[53] * (steps * height * width // 4), END]
    row = torch.tensor([ids])
    made |= {"input_ids": row, "attention_mask": torch.ones_like(row), "mm_token_type_ids": 2 * (row == 53).int()}
    made["labels"] = torch.where(row == 53, -100, row)
    grids = torch.tensor(videos)
    pixels = torch.randn(int(grids.prod(1).sum()), 96, generator=torch.Generator().manual_seed(number))
    made |= {"pixel_values_videos": pixels, "video_grid_thw": grids}
    return made | ({} if seconds is None else {"second_per_grid_ts": torch.tensor(seconds)})


VIDEOS = [
    video(10, 3, (2, 2, 4), (1, 2, 2)),
    sample(11, 4),
    video(12, 2, (3, 2, 2)),
    sample(13, 1, (2, 4)),
    {**video(14, 5, (2, 2, 2)), **{n: v for n, v in sample(14, 5, (2, 2)).items() if n.startswith(("pix", "ima"))}},
]
VIDEOS[4]["input_ids"] = torch.cat([VIDEOS[4]["input_ids"], torch.tensor([[START, IMAGE, END]])], 1)
for name, values in {"attention_mask": [1, 1, 1], "mm_token_type_ids": [0, 1, 0], "labels": [-100] * 3}.items():
    VIDEOS[4][name] = torch.cat([VIDEOS[4][name], torch.tensor([values], dtype=VIDEOS[4][name].dtype)], 1)


def plain(batch):
    """The sequences of a batch, by number: ids, labels and images."""
    from nopad.batch.images import images_of

    ids, labels = (batch.unpack_tokens(batch[name]) for name in ("input_ids", "labels"))
    numbers = batch.records["seq_index"].tolist()
    return {n: (a, b, c) for n, a, b, c in zip(numbers, ids, labels, images_of(batch), strict=True)}


@pytest.mark.parametrize("how", [{"rows": 2}, {"rows": 1, "form": nopad.Flat()}, {"rows": 1, "accumulation": 2}])
def test_every_sequence_comes_with_its_own_images(how):
    loader = nopad.PackedLoader(SAMPLES, capacity=32, last="fill", prefetch=0, **how)
    for _ in range(2):
        found = {}
        for batch in loader:
            if batch.weight:
                found |= plain(batch)
        assert sorted(found) == list(range(len(SAMPLES)))
        for number, (ids, labels, images) in found.items():
            wanted = SAMPLES[number]
            assert torch.equal(ids, wanted["input_ids"][0])
            assert torch.equal(labels, wanted["labels"][0])
            assert images.keys() == wanted.keys() & {"pixel_values", "image_grid_thw"}
            assert all(torch.equal(value, wanted[name]) for name, value in images.items())


def test_results_are_those_alone():
    model, safe = reader(), nopad.packed(reader())
    loader = nopad.PackedLoader(SAMPLES, capacity=32, images=4, rows=2, collate=causal, last="short")
    compared = 0
    for batch in loader:
        found = batch.unpack_tokens(safe(**batch).logits)
        for number, logits in zip(batch.records["seq_index"].tolist(), found, strict=True):
            alone = {k: v for k, v in SAMPLES[number].items() if k not in ("labels", "attention_mask")}
            torch.testing.assert_close(logits, model(**alone).logits[0], rtol=0, atol=1e-5)
            compared += 1
        assert (batch["labels"][0, 0] == -100).all()  # the first of a sequence, which no token predicts
    assert compared == len(SAMPLES)


SHOWN = {"pixel_values", "image_grid_thw", "pixel_values_videos", "video_grid_thw", "second_per_grid_ts"}


@pytest.mark.parametrize("as_dataset", [False, True])
def test_videos_come_with_their_own_sequences(as_dataset):
    given = VIDEOS
    if as_dataset:
        names = {name for one in VIDEOS for name in one}
        flat = {name: [one.get(name) for one in VIDEOS] for name in names}
        columns = {
            name: [None if v is None else (v if name in SHOWN else v[0]).tolist() for v in values]
            for name, values in flat.items()
        }
        given = datasets.Dataset.from_dict(columns)
    loader = nopad.PackedLoader(given, capacity=24, images=3, rows=1, last="short")
    found = {}
    for batch in loader:
        steps = 0 if "video_grid_thw" not in batch else int(np.asarray(batch["video_grid_thw"])[:, 0].sum())
        assert int(batch.images.sum()) + steps <= 3
        found |= plain(batch)
    assert sorted(found) == list(range(len(VIDEOS)))
    for number, (ids, _, shown) in found.items():
        wanted = VIDEOS[number]
        assert torch.equal(torch.as_tensor(ids), wanted["input_ids"][0])
        assert shown.keys() == wanted.keys() & SHOWN
        for name, value in shown.items():
            np.testing.assert_allclose(np.asarray(value), wanted[name].numpy(), rtol=1e-6)
    assert "10 images (a video counts as one per step in time), 2.5 per pack" in str(loader.summary())


def test_a_video_counts_its_steps():
    """A limit of images is one of images and of steps of videos."""
    assert open_tokens(VIDEOS).images.tolist() == [3, 0, 3, 1, 3]
    with pytest.raises(LengthError, match=r"3 of 5 .* more than 2 images.* 0 with 3 \(a video counts as one per step"):
        nopad.PackedLoader(VIDEOS, capacity=32, rows=1, images=2)


def test_results_with_videos_are_those_alone():
    model, safe = reader(), nopad.packed(reader())
    compared = 0
    for batch in nopad.PackedLoader(VIDEOS, capacity=32, images=6, rows=2, collate=causal, last="short"):
        found = batch.unpack_tokens(safe(**batch).logits)
        for number, logits in zip(batch.records["seq_index"].tolist(), found, strict=True):
            alone = {k: v for k, v in VIDEOS[number].items() if k not in ("labels", "attention_mask")}
            torch.testing.assert_close(logits, model(**alone).logits[0], rtol=0, atol=1e-5)
            compared += 1
    assert compared == len(VIDEOS)


def test_other_seconds_are_other_data():
    before = [video(1, 2, (2, 2, 2), seconds=[1.0]), sample(2, 3)]
    after = [video(1, 2, (2, 2, 2), seconds=[0.5]), sample(2, 3)]
    assert open_tokens(before).fingerprint != open_tokens(after).fingerprint
    (batch,) = nopad.PackedLoader(before, capacity=32, rows=1)
    assert batch["second_per_grid_ts"].tolist() == [1.0]
    many = [sample(number, 2) for number in range(300)]
    with pytest.raises(SourceError, match="some videos have second_per_grid_ts and others have not; give them to all"):
        open_tokens([*before, *many, video(3, 2, (1, 2, 2))])
    with pytest.raises(SourceError, match="feature 0 has second_per_grid_ts and feature 1 has not"):
        open_tokens([before[0], video(3, 2, (1, 2, 2))])


def test_one_flat_row_without_a_capacity():
    loader = nopad.PackedLoader(SAMPLES, tokens=32, images=3)
    held = [(batch.layout.shape[0], batch.layout.tokens, int(batch.images.sum())) for batch in loader]
    assert all(rows == 1 and tokens <= 32 and images <= 3 for rows, tokens, images in held)
    assert sum(images for *_, images in held) == 8


@pytest.mark.parametrize("images", [3, 4, 5])
def test_packs_hold_so_many_images(images):
    loader = nopad.PackedLoader(SAMPLES, capacity=64, images=images, rows=1, last="short")
    sums = [[int(batch.images.sum()) for batch in loader] for _ in range(3)]
    total = sum(len(one.get("image_grid_thw", ())) for one in SAMPLES)
    assert all(max(one) <= images and sum(one) == total for one in sums)
    assert len(sums[0]) >= -(-total // images)
    assert f"{total} images" in str(loader.summary())
    assert f"at most {images}" in str(loader.summary())
    without = nopad.PackedLoader(SAMPLES, capacity=64, rows=1, last="short")
    assert max(int(batch.images.sum()) for batch in without) > images


def test_a_dataset_is_read_by_number():
    rows = [
        {
            name: value[0].tolist() if name not in ("pixel_values", "image_grid_thw") else value.tolist()
            for name, value in one.items()
        }
        for one in SAMPLES
    ]
    rows = [{"pixel_values": None, "image_grid_thw": None, **row} for row in rows]
    dataset = datasets.Dataset.from_list(rows)
    source = open_tokens(dataset)
    assert source.images.tolist() == [2, 0, 1, 0, 3, 1, 0, 1]
    found = {}
    for batch in nopad.PackedLoader(dataset, capacity=32, images=4, rows=1, last="short"):
        found |= plain(batch)
    for number, (ids, _, images) in found.items():
        assert torch.equal(ids, SAMPLES[number]["input_ids"][0])
        for name, value in images.items():
            np.testing.assert_allclose(np.asarray(value), SAMPLES[number][name].numpy(), rtol=1e-6)


def test_images_of_one_size_have_no_grids():
    given = [{"input_ids": [5, IMAGE, 6], "pixel_values": np.ones((2, 3, 4, 4), np.float32)}, {"input_ids": [7, 8]}]
    (batch,) = nopad.PackedLoader(given, capacity=8, images=2, rows=1)
    assert sorted(batch.images.tolist()) == [0, 2]
    assert tuple(batch["pixel_values"].shape) == (2, 3, 4, 4)
    assert "image_grid_thw" not in batch


def test_a_batch_without_images_has_none():
    loader = nopad.PackedLoader(SAMPLES, sequences=1, prefetch=0)
    kinds = {("pixel_values" in batch, bool(batch.images.any())) for batch in loader}
    assert kinds == {(True, True), (False, False)}


def test_padding_of_records_is_removed():
    padded = copy.deepcopy(SAMPLES[2])
    width = padded["input_ids"].shape[1]
    for name in ("input_ids", "attention_mask", "mm_token_type_ids", "labels"):
        padded[name] = torch.nn.functional.pad(padded[name], (0, 3))
    (batch,) = nopad.PackedLoader([padded], capacity=32, rows=1)
    assert batch.layout.tokens == width


def test_states_and_processes():
    given = {"capacity": 32, "images": 4, "rows": 1, "last": "short", "seed": 3}
    whole = [plain(batch) for batch in nopad.PackedLoader(SAMPLES, **given)]
    loader = nopad.PackedLoader(SAMPLES, **given)
    batches = iter(loader)
    first = plain(next(batches))
    batches.close()
    other = nopad.PackedLoader(SAMPLES, **given)
    other.load_state_dict(loader.state_dict())
    left = [plain(batch) for batch in other]
    assert [list(one) for one in [first, *left]] == [list(one) for one in whole]
    with pytest.raises(PlanMismatchError, match="images"):
        nopad.PackedLoader(SAMPLES, **{**given, "images": 5}).load_state_dict(loader.state_dict())
    sent = pickle.loads(pickle.dumps(nopad.PackedLoader(SAMPLES, **given)))
    assert [list(plain(batch)) for batch in sent] == [list(one) for one in whole]
    worker = nopad.PackedLoader(SAMPLES, **given).dataloader(num_workers=1)
    assert [list(plain(batch)) for batch in worker] == [list(one) for one in whole]


def test_ranks_share_the_sequences():
    ranks = [
        nopad.PackedLoader(SAMPLES, capacity=32, images=3, rows=1, last="short", rank=rank, world_size=2)
        for rank in range(2)
    ]
    given = [plain(batch) for loader in ranks for batch in loader if batch.weight]
    numbers = [number for one in given for number in one]
    assert sorted(numbers) == list(range(len(SAMPLES)))
    assert sum(len(images.get("image_grid_thw", ())) for one in given for *_, images in one.values()) == 8


def test_other_images_are_other_data():
    before = open_tokens(SAMPLES).fingerprint
    assert open_tokens(copy.deepcopy(SAMPLES)).fingerprint == before
    changed = copy.deepcopy(SAMPLES)
    changed[4]["pixel_values"][0, 0] += 1
    assert open_tokens(changed).fingerprint != before
    turned = copy.deepcopy(SAMPLES)
    turned[0]["image_grid_thw"] = turned[0]["image_grid_thw"][:, [0, 2, 1]]
    assert open_tokens(turned).fingerprint != before


@pytest.mark.parametrize("grids", [True, False])
@pytest.mark.parametrize("change", [0, 1, -1])
def test_records_that_got_other_numbers_of_images_are_refused(grids, change):
    """The packs were planned for those that were there."""
    images = [1, 2, 3]
    records = [{"input_ids": [5] * 4, "pixel_values": np.ones((count * 4, 6), np.float32)} for count in images]
    if grids:
        for record, count in zip(records, images, strict=True):
            record["image_grid_thw"] = np.array([[1, 2, 2]] * count)
    else:
        for record, count in zip(records, images, strict=True):
            record["pixel_values"] = np.ones((count, 3, 2, 2), np.float32)
    loader = nopad.PackedLoader(records, 8, images=3, rows=1, last="short")
    each = 4 if grids else 1
    there = (2 + change) * each
    records[1]["pixel_values"] = np.resize(records[1]["pixel_values"], (there, *records[1]["pixel_values"].shape[1:]))
    if not change:
        assert sum(batch.images.sum() for batch in loader) == 6
        return
    with pytest.raises(SourceError, match=f"record 1 had {2 * each} rows when it was opened, and have {there} now"):
        list(loader)


def test_a_mixture_of_sequences_with_images():
    loader = nopad.PackedLoader(Mixture({"one": SAMPLES[:4], "two": SAMPLES[4:]}, exhausted="drop"), 32, rows=1)
    seen = [int(count) for batch in loader for count in batch.images]
    assert sum(seen) >= 1
    assert set(seen) <= {0, 1, 2, 3}


@pytest.mark.parametrize(
    ("data", "given", "error", "says"),
    [
        (
            SAMPLES,
            {"images": 2},
            LengthError,
            "1 of 8 sequences have more than 2 images, the first is sequence 4 with 3",
        ),
        (SAMPLES, {"images": 0}, OptionError, "images must be"),
        (SAMPLES, {"images": 4, "groups": 2}, OptionError, "images limits the images of a pack.*groups"),
        (SAMPLES, {"images": 4, "align": 8}, OptionError, "images limits the images of a pack.*align"),
        (SAMPLES, {"images": 4, "depth": 2}, OptionError, "depth: not for a plan with two limits"),
        (SAMPLES, {"images": 4, "rows": None, "capacity": None, "sequences": 2}, OptionError, "nothing is packed"),
        (SAMPLES, {"images": 4, "exhausted": "stop"}, OptionError, "a stream holds no images"),
        ([[5, 6], [7]], {"images": 4}, OptionError, "holds no images: they are pixel_values of each record"),
        ([SAMPLES[0], {"input_ids": [5]}], {}, SourceError, "do not have the same keys"),
        (SAMPLES, {"capacity": 9}, LengthError, "longer than the capacity of 9"),
    ],
)
def test_what_is_refused(data, given, error, says):
    with pytest.raises(error, match=says):
        nopad.PackedLoader(data, **{"capacity": 32, "rows": 1, **given})


def test_a_source_that_is_refused():
    with pytest.raises(OptionError, match="records with images are taken as they are"):
        open_tokens(SAMPLES, empty="skip")
    wrong = copy.deepcopy(SAMPLES)
    wrong[1]["pixel_values_videos"] = torch.zeros(4, 96)
    with pytest.raises(SourceError, match=r"pixel_values_videos of feature 1 are .*, without video_grid_thw"):
        open_tokens(wrong)
    gone = copy.deepcopy(SAMPLES)
    source = open_tokens(gone)
    del gone[2]["pixel_values"]
    with pytest.raises(SourceError, match="record 2 had pixel_values when it was opened"):
        source.gather([2])
    gone[2] = "no record"
    with pytest.raises(SourceError, match="record 2 had pixel_values when it was opened, and has none now"):
        source.gather([2])
    gone.clear()
    with pytest.raises(SourceError, match="record 4 had pixel_values when it was opened, and has none now"):
        source.gather([4])


def test_a_dataset_that_is_read_as_a_stream_is_refused():
    stream = datasets.Dataset.from_list([{"input_ids": [5], "pixel_values": [[1.0]]}]).to_iterable_dataset()
    with pytest.raises(SourceError, match="a IterableDataset has no rows by number"):
        open_tokens(stream)


def test_a_dataset_whose_file_is_cut_short(tmp_path):
    rows = [{"input_ids": [5] * 4, "pixel_values": np.ones((1, 3, 64, 64), np.float32).tolist()} for _ in range(4)]
    datasets.Dataset.from_list(rows).save_to_disk(tmp_path)
    dataset = datasets.load_from_disk(tmp_path)
    source = open_tokens(dataset)
    assert source.gather([3]).values["pixel_values"][0].shape == (1, 3, 64, 64)
    os.truncate(dataset.cache_files[0]["filename"], 1000)
    with pytest.raises(SourceError, match="changed since it was opened"):
        source.gather([3])


@settings(max_examples=15, deadline=None)
@given(
    data=st.lists(
        st.tuples(st.integers(1, 9), st.lists(st.sampled_from([(2, 2), (2, 4)]), max_size=3)), min_size=1, max_size=9
    ),
    images=st.none() | st.integers(3, 6),
    rows=st.integers(1, 3),
    seed=st.integers(0, 9),
)
def test_any_sequences_keep_their_images(data, images, rows, seed):
    """Text of any length and any number of images: each sequence comes once, with its own."""
    records = [sample(number, text, *grids) for number, (text, grids) in enumerate([*data, (1, [(2, 2)])])]
    loader = nopad.PackedLoader(records, capacity=32, images=images, rows=rows, last="short", seed=seed, prefetch=0)
    found = {}
    for batch in loader:
        assert images is None or all(
            batch.images[batch.layout.starts // batch.layout.shape[1] == row].sum() <= images
            for row in range(batch.layout.shape[0])
        )
        found |= plain(batch)
    assert sorted(found) == list(range(len(records)))
    for number, (_, _, mine) in found.items():
        wanted = records[number]
        assert all(torch.equal(value, wanted[name]) for name, value in mine.items())
        assert ("pixel_values" in mine) == ("pixel_values" in wanted)
