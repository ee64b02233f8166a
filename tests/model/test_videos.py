"""Videos beside tokens: positions, isolation, refusals; `test_images.py` compares outputs with those alone."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pictures import FORMS, MIXED, START, VIDEO, Video, alone, build, far, laid, logits_alone, samples
from zoo import let

import nopad
from nopad.errors import BatchError, UnsupportedModelError

KINDS = ["qwen2_5_vl, videos", "qwen2_vl, videos", "qwen3_vl, videos"]
VIDEOS = ("pixel_values_videos", "video_grid_thw", "second_per_grid_ts")


@pytest.mark.parametrize("kind", KINDS)
def test_positions_are_those_of_each_sequence_alone(kind):
    model = nopad.packed(build(kind))
    batch, given = laid(kind), []
    model.model.language_model.register_forward_pre_hook(
        lambda module, args, kwargs: given.append(kwargs["position_ids"]), with_kwargs=True
    )
    model(**batch)
    [axes] = given
    names = ("input_ids", "mm_token_type_ids", "image_grid_thw", *VIDEOS[1:])
    for found, sample in zip(batch.unpack_tokens(axes.permute(1, 2, 0)), samples(kind), strict=True):
        if not {"image_grid_thw", "video_grid_thw"} & sample.keys():
            assert torch.equal(found, torch.arange(len(found))[:, None].expand(-1, 3))
            continue
        wanted, _ = model.model.get_rope_index(**{name: sample[name] for name in names if name in sample})
        assert torch.equal(found, wanted[:, 0].T)


def test_seconds_move_positions():
    """Else the tests of Qwen2.5-VL would not see seconds that belong to another video."""
    model, first, second = nopad.packed(build(KINDS[0])), samples(KINDS[0]), samples(KINDS[0])
    first, second = first[-1:], second[-1:]
    for one, seconds in ((first[0], [1.0, 3.0]), (second[0], [3.0, 1.0])):  # whole ones: transformers 5.9 cuts others
        one["second_per_grid_ts"] = torch.tensor(seconds)
    one, two = (model(**nopad.PackedBatch.from_features(given)).logits for given in (first, second))
    assert far([one], [two]) > 1e-3
    assert far(logits_alone(nopad.unpacked(model), second), [two[0]]) < 1e-6


@torch.no_grad()
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("change", [lambda value: value * 1e6, lambda value: value * float("nan")], ids=["x", "nan"])
def test_a_video_moves_no_neighbour_by_one_bit(kind, change):
    model, given = nopad.packed(build(kind)), samples(kind)
    batch = nopad.PackedBatch.from_features(given, FORMS["rows"])
    before = batch.unpack_tokens(model(**batch).logits)
    given[2]["pixel_values_videos"] = change(given[2]["pixel_values_videos"])
    batch = nopad.PackedBatch.from_features(given, FORMS["rows"])
    after = batch.unpack_tokens(model(**batch).logits)
    for number, (one, two) in enumerate(zip(before, after, strict=True)):
        assert torch.equal(one, two) == (number != 2)


@torch.no_grad()
@pytest.mark.parametrize("kind", KINDS)
def test_videos_alone_images_alone_and_neither(kind):
    """The tower runs for each kind that a batch has."""
    stock, model, ran = build(kind), nopad.packed(build(kind)), []
    model.model.visual.register_forward_pre_hook(lambda *_: ran.append(1))
    for parts, times in [
        ([[2, Video(2, 2, 2)], [3], [Video(1, 4, 4), 1]], 1),
        ([[2, (1, 2, 2), 1], [3]], 1),
        ([[2], [3, 4]], 0),
        ([[2, Video(1, 2, 2), 1], [(1, 2, 2), 4]], 2),
    ]:
        ran.clear()
        batch = laid(kind, parts=parts)
        found = batch.unpack_tokens(model(**batch).logits)
        assert len(ran) == times
        assert far(found, logits_alone(stock, samples(kind, parts))) < 1e-6


parts_of_sequences = st.lists(
    st.lists(
        st.one_of(
            st.integers(1, 6),
            st.sampled_from([(1, 2, 2), (1, 4, 2), Video(1, 4, 4, 0.4), Video(3, 2, 2, 1.0), Video(2, 2, 4, 0.7)]),
        ),
        min_size=1,
        max_size=4,
    ),
    min_size=1,
    max_size=5,
)
MODELS = {}


@settings(max_examples=max(15, settings.default.max_examples // 20))
@given(kind=st.sampled_from(KINDS), parts=parts_of_sequences, form=st.sampled_from([nopad.Flat(), nopad.Rows(90)]))
@torch.no_grad()
def test_any_sequences_with_any_videos(kind, parts, form):
    if kind not in MODELS:
        MODELS[kind] = build(kind), nopad.packed(build(kind))
    stock, model = MODELS[kind]
    batch = laid(kind, form, parts)
    assert batch.videos.tolist() == [sum(isinstance(part, Video) for part in one) for one in parts]
    assert batch.images.tolist() == [sum(type(part) is tuple for part in one) for one in parts]
    found = batch.unpack_tokens(model(**batch).logits)
    assert far(found, logits_alone(stock, samples(kind, parts))) < 1e-6


class TestAudits:
    @pytest.mark.parametrize("kind", KINDS)
    def test_of_samples(self, kind):
        """Seconds are no values to poison: other ones are other positions, and NaN is none."""

        def packed(model, given):
            batch = nopad.PackedBatch.from_features(given, nopad.Rows(60))
            return batch.unpack_tokens(model(**batch).logits)

        given = [{k: v for k, v in one.items() if k != "labels"} for one in samples(kind, MIXED[:5])]
        model = nopad.packed(build(kind).float())
        verdict = nopad.audit_samples(model, given, alone=lambda m, one: alone(m, one).logits[0], packed=packed)
        assert verdict.isolated, verdict

    @pytest.mark.parametrize("kind", KINDS)
    def test_of_a_step(self, kind):
        collate = partial(nopad.PackedBatch.from_features, causal=True)

        def shuffled(given):
            """Exchange the videos of the last two sequences, which have one of the same size each."""
            one, two = (sample["pixel_values_videos"] for sample in given[-2:])
            return collate(
                [*given[:-2], given[-2] | {"pixel_values_videos": two}, given[-1] | {"pixel_values_videos": one}]
            )

        given = samples(
            kind, [[4, Video(2, 4, 4), 2], [3, (1, 2, 2), 1], [Video(2, 2, 4, 0.5), 5], [Video(2, 2, 4), 3]]
        )
        given = [{name: value for name, value in one.items() if name != "attention_mask"} for one in given]
        model = nopad.packed(build(kind))
        verdict = nopad.audit_step(model, given, collate=collate, ranks=1, accumulation=1)
        assert verdict.passed, verdict
        assert not nopad.audit_step(model, given, collate=shuffled, ranks=1, accumulation=1).passed


def changed(**given):
    return lambda batch: {**batch, **given}


def without(*names):
    return lambda batch: {name: value for name, value in batch.items() if name not in names}


def cut(name, count):
    return lambda batch: {**batch, name: batch[name][:count]}


def _with_ids(function):
    def change(batch):
        ids = batch["input_ids"].clone()
        function(ids, torch.from_numpy(batch.sequence_ids))
        return {**batch, "input_ids": ids, "mm_token_type_ids": None}

    return change


def _one_more(ids, owner):
    ids.view(-1)[(owner == 2).view(-1).nonzero()[0]] = VIDEO


def _split(ids, owner):
    """Move the last video token of sequence 0 behind the token that ends the video."""
    flat, at = ids.view(-1), (owner == 1).view(-1).nonzero()[:, 0]
    last = [int(place) for place in at if flat[place] == VIDEO][-1]
    flat[last], flat[last + 1] = flat[last + 1].clone(), flat[last].clone()


WRONG = {
    "no pixels": (without(VIDEOS[0]), "the batch has 6 videos, and no pixel_values_videos were given"),
    "no grids": (without(VIDEOS[1]), "video_grid_thw are missing; Qwen2_5_VLForConditionalGeneration takes them with"),
    "a grid too few": (
        cut(VIDEOS[1], 5),
        r"video_grid_thw are \[5, 3\], and the batch has 6 videos; expected \[6, 3\]",
    ),
    "seconds too few": (cut(VIDEOS[2], 5), r"second_per_grid_ts are \[5\], and the batch has 6 videos; expected \[6\]"),
    "a patch too few": (cut(VIDEOS[0], -1), r"pixel_values_videos are \[155, 96\].* 6 videos .* expected \[156, 96\]"),
    "odd patches": (
        lambda batch: {**batch, VIDEOS[1]: batch[VIDEOS[1]] - torch.tensor([0, 1, 0])},
        r"video 0 of the batch has the grid .*; height and width are multiples of 2 patches",
    ),
    "one more": (_with_ids(_one_more), r"sequence 1 has 1 video tokens \(93\), and its videos \(it has none\) give 0"),
    "padding": (
        _with_ids(lambda ids, owner: ids.masked_fill_(owner == 0, VIDEO)),
        "padding holds the video token 93",
    ),
    "split": (_with_ids(_split), r"video tokens of sequence 0 come in runs of \[3, 1\], and its videos give \[4\]"),
    "types": (
        lambda batch: {**batch, "mm_token_type_ids": batch["mm_token_type_ids"].clamp(max=1)},
        "mm_token_type_ids hold 1 at .*; they are 1 at image tokens, 2 at video tokens and 0 at others",
    ),
    "lists": (changed(second_per_grid_ts=[1.0] * 6), "second_per_grid_ts are of type list; expected a tensor"),
    "elsewhere": (
        lambda batch: {**batch, VIDEOS[0]: batch[VIDEOS[0]].to("meta")},
        r"pixel_values_videos are on meta and the model on cpu; use batch\.to",
    ),
}


class TestRefused:
    @pytest.mark.parametrize("name", sorted(WRONG))
    def test_calls(self, name):
        """Before anything of the model runs."""
        model, (change, says) = nopad.packed(build(KINDS[0])), WRONG[name]
        ran = []
        for module in model.model.children():
            module.register_forward_pre_hook(lambda *_: ran.append(1))
        batch = laid(KINDS[0])
        with pytest.raises(BatchError, match=says):
            model(**change(batch))
        assert not ran
        model(**batch)

    def test_steps_without_a_time_between_them(self):
        """Qwen3-VL counts positions of each step by itself, and needs another token between two."""
        videos = {name: value for name, value in samples(KINDS[2], [[Video(2, 2, 2)]])[0].items() if name in VIDEOS}
        batch = nopad.PackedBatch.from_features([{"input_ids": [5, START, VIDEO, VIDEO, 7], **videos}])
        with pytest.raises(BatchError, match=r"in runs of \[2\], and its videos give \[1, 1\]; .*each of its steps"):
            nopad.packed(build(KINDS[2]))(**batch)

    def test_times_beyond_the_positions(self):
        parts = [[4], [2, Video(4, 2, 2, 30.0), 1]]
        with pytest.raises(BatchError, match=r"sequence 1 has a token at position 363, and .* has 128 positions"):
            nopad.packed(build(KINDS[0]))(**laid(KINDS[0], parts=parts))

    def test_videos_without_their_sequences(self):
        model, sample = nopad.packed(build(KINDS[1])), samples(KINDS[1], [[2, Video(1, 2, 2), 1]])[0]
        batch = nopad.PackedBatch.from_sequences([sample["input_ids"][0], [5, 6]])
        with pytest.raises(BatchError, match=r"sequence 0 has 1 video tokens .* has none.* give 0"):
            model(**batch)
        with pytest.raises(BatchError, match="pixel_values_videos were given, and the batch does not say which"):
            model(**batch, pixel_values_videos=sample["pixel_values_videos"])

    def test_models_without_videos(self):
        batch = laid(KINDS[1])
        with pytest.raises(BatchError, match=r"pixel_values_videos were given to Llava.*takes images and no videos"):
            nopad.packed(build("llava"))(**batch)
        text = build(KINDS[1]).model.language_model
        with pytest.raises(UnsupportedModelError, match="make the whole model pack-safe"):
            nopad.packed(text)

    def test_flash_arguments(self):
        only = laid(KINDS[1], nopad.Flat(), [[2, Video(1, 2, 2)], [3]])
        with pytest.raises(BatchError, match="this batch has 1 videos, and a model may count the positions"):
            only.as_flash_kwargs()
        with pytest.raises(BatchError, match="this batch has 3 images and 6 videos, and a model"):
            laid(KINDS[1], nopad.Flat()).as_flash_kwargs()

    def test_a_tower_that_is_passed_over(self):
        model, batch = nopad.packed(build(KINDS[1])), laid(KINDS[1])
        kept = model.model.get_image_features(batch["pixel_values"], batch["image_grid_thw"])
        model.model.get_image_features = let(model, lambda *args, **kwargs: kept)
        with pytest.raises(UnsupportedModelError, match=r"vision tower of .* was to run twice and ran 1 times"):
            model(**batch)
