"""Models that take images and videos beside their tokens: packed against the stock model on each sequence alone.

It writes a table of docs/internals/equality.md.
"""

from __future__ import annotations

import copy
import os
from functools import partial
from pathlib import Path

import pictures
import pytest
import torch
import transformers as t
from hypothesis import given, settings
from hypothesis import strategies as st
from kinds import AllDouble
from pictures import CLASSES, CONFIGS, FORMS, PARTS, alone, build, far, laid, logits_alone, samples
from zoo import let

import nopad
from nopad.errors import BatchError, NotPackSafeError, UnsupportedModelError
from nopad.model import attention, static_inputs
from nopad.model.families import FAMILIES, FRONTS, IMAGES, TEXTS, TOWERS

LIMIT, SINGLE = 1e-12, 1e-5
PAGE = Path(__file__).resolve().parents[2] / "docs" / "internals" / "equality.md"
MEASURED: dict[str, list[float]] = {}
PLAIN = ["llava", "qwen2_5_vl", "qwen2_vl", "qwen3_vl"]
MIXED = ["qwen2_5_vl, videos", "qwen3_vl, videos"]  # with images and without


def weighed(outputs):
    """One number of all outputs, each weighed at random, so that every gradient counts."""
    total = torch.zeros((), dtype=torch.float64)
    for number, output in enumerate(outputs):
        generator = torch.Generator().manual_seed(number)
        total = total + (output * torch.randn(output.shape, generator=generator, dtype=torch.float64)).sum()
    return total


def gradients(model, outputs):
    found = torch.autograd.grad(weighed(outputs), list(model.parameters()), allow_unused=True)
    return dict(zip((name for name, _ in model.named_parameters()), found, strict=True))


def far_slopes(found, wanted):
    """Largest difference within a gradient over its largest value; where that is 0 in truth, over that of all."""
    assert {name for name, one in found.items() if one is None} == {name for name, one in wanted.items() if one is None}
    kept = {name: one for name, one in wanted.items() if one is not None}
    largest = max(float(one.abs().max()) for one in kept.values())
    sizes = {name: float(one.abs().max()) for name, one in kept.items()}
    return max(
        float((found[name] - one).abs().max()) / (sizes[name] if sizes[name] > 1e-9 * largest else largest)
        for name, one in kept.items()
    )


def test_every_kind_is_here():
    assert set(IMAGES) == set(CLASSES)
    with_videos = {kind.partition(",")[0] for kind in CONFIGS if kind.endswith("videos")}
    assert with_videos == {kind for kind, family in IMAGES.items() if family.images.axes}
    assert not set(IMAGES) & {*FAMILIES, *FRONTS}
    built = [config() for kind, config in CONFIGS.items() if kind.startswith("llava")]
    assert {config.text_config.model_type for config in built} == set(TEXTS)
    assert {config.vision_config.model_type for config in built} == set(TOWERS)


@pytest.mark.parametrize("kind", PLAIN)
def test_rows_take_the_images_in_another_order(kind):
    """Else the tests below would not see images in the order given."""
    batch = laid(kind)
    pictured = [number for number in batch.layout.order.tolist() if batch.images[number]]
    assert pictured != sorted(pictured)


@pytest.mark.parametrize("kind", sorted(CONFIGS))
def test_outputs_and_gradients_are_those_alone(kind):
    """In float64 throughout, also where the models compute in float32 (norms, rotary angles)."""
    worst = [0.0, 0.0]
    with AllDouble():
        model = build(kind)
        wanted = logits_alone(model, samples(kind))
        slopes = gradients(model, wanted)
        nopad.packed(model)
        for form in FORMS.values():
            batch = laid(kind, form)
            del batch["labels"]
            found = batch.unpack_tokens(model(**batch).logits)
            worst[0] = max(worst[0], far(found, wanted))
            worst[1] = max(worst[1], far_slopes(gradients(model, found), slopes))
    assert max(worst) < LIMIT
    towers = [name for name in slopes if name.startswith(("model.visual", "model.vision_tower")) and "bias" not in name]
    reached = [name for name in towers if slopes[name] is not None and slopes[name].abs().max() > 1e-6]
    assert len(reached) > 10, reached
    MEASURED[kind] = worst


@torch.no_grad()
@pytest.mark.parametrize("kind", sorted(CONFIGS))
@pytest.mark.parametrize(("dtype", "limit"), [(torch.float64, 1e-6), (torch.float32, SINGLE)], ids=str)
def test_as_the_models_compute(kind, dtype, limit):
    """Parts in float32 whatever the dtype is: a rounding that goes the other way is of float32's size."""
    model = build(kind).to(dtype)
    given = [_as(sample, dtype) for sample in samples(kind)]
    wanted = logits_alone(model, given)
    nopad.packed(model)
    worst = 0.0
    for form in FORMS.values():
        batch = nopad.PackedBatch.from_features(given, form)
        del batch["labels"]
        worst = max(worst, far(batch.unpack_tokens(model(**batch).logits), wanted))
    assert worst < limit
    if dtype == torch.float32 and kind in MEASURED:
        MEASURED[kind].append(worst)


def test_the_page_has_every_kind():
    """With NOPAD_WRITE_DOCS=1 the table is written, of all tests of this file in one process (-n 0)."""
    text, head = PAGE.read_text(), "| model | outputs / gradients | float32 |\n|---|---|---|"
    begin = text.index(head)
    if os.environ.get("NOPAD_WRITE_DOCS"):
        rows = [f"| {kind} | {a:.0e} / {b:.0e} | {c:.0e} |" for kind, (a, b, c) in sorted(MEASURED.items())]
        PAGE.write_text(text[:begin] + "\n".join([head, *rows]) + text[text.index("\n\n", begin) :])
        text = PAGE.read_text()
    found = [line.split("|")[1:-1] for line in text[begin : text.index("\n\n", begin)].splitlines()[2:]]
    assert [kind.strip() for kind, _, _ in found] == sorted(CONFIGS)
    for _, double, single in found:
        assert all(float(number) < LIMIT for number in double.split(" / "))
        assert float(single) < SINGLE


def _as(sample, dtype):
    return {name: value.to(dtype) if value.is_floating_point() else value for name, value in sample.items()}


@pytest.mark.parametrize("kind", PLAIN + MIXED)
def test_base_models_and_losses(kind):
    base, whole = build(kind, "Model"), build(kind)
    states = [alone(base, sample).last_hidden_state[0] for sample in samples(kind)]
    logits = logits_alone(whole, samples(kind))
    labels = [sample["labels"][0] for sample in samples(kind)]
    pairs = [(one[:-1], two[1:]) for one, two in zip(logits, labels, strict=True)]
    wanted = torch.nn.functional.cross_entropy(*(torch.cat(side) for side in zip(*pairs, strict=True)))
    batch = laid(kind, causal=True)
    found = nopad.packed(whole)(**batch)
    assert float(found.loss.detach()) == pytest.approx(float(wanted.detach()), abs=1e-6)
    del batch["labels"]
    assert far(batch.unpack_tokens(nopad.packed(base)(**batch).last_hidden_state), states) < 1e-6


@torch.no_grad()
@pytest.mark.parametrize("kind", PLAIN)
def test_batches_without_an_image(kind):
    model, parts = build(kind), [[7], [3], [12]]
    wanted = logits_alone(model, samples(kind, parts))
    nopad.packed(model)
    batch = laid(kind, parts=parts)
    assert "pixel_values" not in batch
    assert far(batch.unpack_tokens(model(**batch).logits), wanted) < LIMIT


@torch.no_grad()
@pytest.mark.parametrize("kind", PLAIN + MIXED)
@pytest.mark.parametrize("backend", ["mask", "repack", "segments"])
def test_backends(kind, backend):
    model = build(kind)
    wanted = logits_alone(model, samples(kind))
    nopad.packed(model, backend=backend)
    batch = laid(kind)
    assert far(batch.unpack_tokens(model(**batch).logits), wanted) < LIMIT


@torch.no_grad()
def test_windows_of_the_text():
    text = {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1}
    model, free = build("", config=pictures.qwen2_vl(**text)), build("qwen2_vl")
    wanted = logits_alone(model, samples("qwen2_vl"))
    assert far(logits_alone(free, samples("qwen2_vl")), wanted) > 1e-3
    nopad.packed(model)
    batch = laid("qwen2_vl")
    assert far(batch.unpack_tokens(model(**batch).logits), wanted) < LIMIT


@pytest.mark.parametrize("kind", PLAIN + MIXED)
def test_gradient_checkpointing(kind):
    model = build(kind)
    nopad.packed(model)
    batch = laid(kind)
    del batch["labels"]
    wanted = gradients(model, [model(**batch).logits])
    model.train()
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    enable()
    found = gradients(model, [model(**batch).logits])
    assert far_slopes(found, wanted) < LIMIT


@torch.no_grad()
@pytest.mark.parametrize("kind", PLAIN + MIXED)
def test_compiled_layers(kind):
    model = build(kind)
    wanted = logits_alone(model, samples(kind))
    nopad.packed(model)
    for layer in model.model.language_model.layers:
        layer.compile(backend="eager")
    batch = laid(kind)
    assert far(batch.unpack_tokens(model(**batch).logits), wanted) < LIMIT


parts_of_sequences = st.lists(
    st.lists(st.one_of(st.integers(1, 6), st.sampled_from([(1, 2, 2), (1, 4, 2), (1, 6, 4)])), min_size=1, max_size=4),
    min_size=1,
    max_size=5,
)
MODELS = {}


@settings(max_examples=max(15, settings.default.max_examples // 20))
@given(kind=st.sampled_from(PLAIN), parts=parts_of_sequences, form=st.sampled_from([nopad.Flat(), nopad.Rows(80)]))
@torch.no_grad()
def test_any_sequences_with_any_images(kind, parts, form):
    if kind not in MODELS:
        MODELS[kind] = build(kind), nopad.packed(build(kind))
    stock, model = MODELS[kind]
    batch = laid(kind, form, parts)
    assert batch.images.tolist() == [sum(isinstance(part, tuple) for part in one) for one in parts]
    found = batch.unpack_tokens(model(**batch).logits)
    assert far(found, logits_alone(stock, samples(kind, parts))) < 1e-6


class TestPositions:
    @pytest.mark.parametrize("kind", ["qwen2_5_vl", "qwen2_vl", "qwen3_vl"])
    def test_axes_are_those_of_each_sequence_alone(self, kind):
        model = nopad.packed(build(kind))
        batch, given = laid(kind), []
        model.model.language_model.register_forward_pre_hook(
            lambda module, args, kwargs: given.append(kwargs["position_ids"]), with_kwargs=True
        )
        model(**batch)
        [axes] = given
        assert axes.shape == (3, *batch.input_ids.shape)
        for found, sample in zip(batch.unpack_tokens(axes.permute(1, 2, 0)), samples(kind), strict=True):
            names = ("input_ids", "mm_token_type_ids", "image_grid_thw")
            if "image_grid_thw" not in sample:
                assert torch.equal(found, torch.arange(len(found))[:, None].expand(-1, 3))
                continue
            wanted, _ = model.model.get_rope_index(**{name: sample[name] for name in names})
            assert torch.equal(found, wanted[:, 0].T)
            assert not torch.equal(found[:, 0], found[:, 2])
        assert not axes[:, torch.from_numpy(batch.sequence_ids == 0)].any()

    def test_positions_of_images_are_fewer_than_tokens(self):
        """128 positions hold a sequence of 150 tokens, most of which are of an image."""
        model = nopad.packed(build("qwen2_vl"))
        batch = laid("qwen2_vl", nopad.Flat(), [[3, (1, 24, 24), 2], [4]])
        assert batch.max_seqlen > 128
        model(**batch)
        with pytest.raises(BatchError, match=r"sequence 1 has a token at position 129, and .* has 128 positions"):
            model(**laid("qwen2_vl", nopad.Flat(), [[4], [130]]))
        with pytest.raises(BatchError, match=r"sequence 0 has a token at position 13\d, and"):
            model(**laid("qwen2_vl", nopad.Flat(), [[124, (1, 2, 4), 10], [4]]))

    def test_positions_of_llava_are_tokens(self):
        with pytest.raises(BatchError, match=r"sequence 0 has 132 tokens, and .* has 128 positions"):
            nopad.packed(build("llava"))(**laid("llava", nopad.Flat(), [[100, (1, 4, 4), (1, 4, 4)], [4]]))


class TestIsolation:
    @torch.no_grad()
    @pytest.mark.parametrize("kind", PLAIN)
    @pytest.mark.parametrize(
        "change", [lambda value: value * 1e6, lambda value: value * float("nan")], ids=["x", "nan"]
    )
    def test_an_image_moves_no_neighbour_by_one_bit(self, kind, change):
        model, given = nopad.packed(build(kind)), samples(kind)
        batch = nopad.PackedBatch.from_features(given, FORMS["rows"])
        before = batch.unpack_tokens(model(**batch).logits)
        given[2]["pixel_values"] = change(given[2]["pixel_values"])
        batch = nopad.PackedBatch.from_features(given, FORMS["rows"])
        after = batch.unpack_tokens(model(**batch).logits)
        for number, (one, two) in enumerate(zip(before, after, strict=True)):
            assert torch.equal(one, two) == (number != 2)

    @pytest.mark.parametrize("kind", PLAIN)
    def test_audit_of_samples(self, kind):
        def packed(model, given):
            batch = nopad.PackedBatch.from_features(given, nopad.Rows(40))
            return batch.unpack_tokens(model(**batch).logits)

        given = [{k: v for k, v in one.items() if k != "labels"} for one in samples(kind, PARTS[:5])]
        stock, model = build(kind).float(), nopad.packed(build(kind).float())
        verdict = nopad.audit_samples(model, given, alone=lambda m, one: alone(m, one).logits[0], packed=packed)
        assert verdict.isolated, verdict

        def along_rows(model, given):
            whole = {name: torch.cat([one[name][0] for one in given])[None] for name in ("input_ids",)}
            kept = [name for name in ("pixel_values", "image_grid_thw") if name in given[0]]
            whole |= {name: torch.cat([one[name] for one in given if name in one]) for name in kept}
            if "image_grid_thw" in whole:
                whole["mm_token_type_ids"] = (whole["input_ids"] == pictures.IMAGE).int()
            return model(**whole).logits[0].split([one["input_ids"].shape[1] for one in given])

        stuck = nopad.audit_samples(
            stock, given, alone=lambda m, one: alone(m, one).logits[0], packed=along_rows, gradients=False
        )
        assert not stuck.isolated

    @pytest.mark.parametrize("kind", PLAIN)
    def test_audit_of_a_step(self, kind, tmp_path):
        """A trainer's own step; and one whose collator gives a sequence the image of another."""
        collate = partial(nopad.PackedBatch.from_features, causal=True)

        def shuffled(given):
            """Exchange the images of the last two sequences, which both have one of the same size."""
            one, two = (sample["pixel_values"] for sample in given[-2:])
            return collate([*given[:-2], given[-2] | {"pixel_values": two}, given[-1] | {"pixel_values": one}])

        given = samples(kind, [[4, (1, 4, 4), 2], [3], [(1, 4, 4), 5], [2, (1, 4, 4)]])
        given = [{name: value for name, value in one.items() if name != "attention_mask"} for one in given]
        model = nopad.packed(build(kind))
        verdict = nopad.audit_step(model, given, collate=collate, ranks=1, accumulation=1)
        assert verdict.passed, verdict
        assert "model.visual" in str(verdict) or "vision_tower" in str(verdict)
        assert not nopad.audit_step(model, given, collate=shuffled, ranks=1, accumulation=1).passed
        how = {"report_to": [], "use_cpu": True, "remove_unused_columns": False, "disable_tqdm": True}
        args = t.TrainingArguments(str(tmp_path), per_device_train_batch_size=2, **how)
        trainer = t.Trainer(model, args, train_dataset=given, data_collator=collate)
        assert nopad.audit_step(trainer=trainer, ranks=1).passed
        several = nopad.audit_step(model, given, collate=collate, ranks=1, accumulation=2)
        assert several.passed == (
            kind in ("llava", "qwen2_vl")
        )  # others' loss takes no denominator (accepts_loss_kwargs)

    @pytest.mark.parametrize("kind", PLAIN)
    def test_the_tower_keeps_its_own_attention(self, kind):
        model = build(kind)
        before = model.config.vision_config._attn_implementation
        nopad.packed(model)
        assert model.config.vision_config._attn_implementation == before != attention.NAME
        assert model.config.text_config._attn_implementation == attention.NAME
        seen = []
        with attention.watched(seen.append):
            model(**laid(kind))
        inside = set(model.model.language_model.modules())
        assert len(seen) == model.config.text_config.num_hidden_layers
        assert set(seen) < inside

    @pytest.mark.parametrize("kind", PLAIN)
    def test_positions_that_are_lost_on_the_way(self, kind):
        model = build(kind)

        def lose(module, args, kwargs):
            return args, {**kwargs, "position_ids": kwargs["position_ids"] + 1}

        handle = model.model.language_model.register_forward_pre_hook(lose, with_kwargs=True)
        nopad.packed(model, prove="never")
        with pytest.raises(UnsupportedModelError, match="is given position_ids that are not those of the batch"):
            model(**laid(kind))
        handle.remove()
        assert model(**laid(kind)).past_key_values is None

    @pytest.mark.parametrize("kind", PLAIN)
    def test_a_tower_that_is_passed_over(self, kind):
        model = nopad.packed(build(kind))
        features = model.model.get_image_features
        kept = features(**{n: v for n, v in laid(kind).items() if n in ("pixel_values", "image_grid_thw")})
        model.model.get_image_features = let(model, lambda *args, **kwargs: kept)
        with pytest.raises(UnsupportedModelError, match=r"vision tower of .* was to run once and ran 0 times"):
            model(**laid(kind))


@torch.no_grad()
@pytest.mark.parametrize("kind", PLAIN)
def test_ordinary_calls_are_what_they_were(kind):
    stock, model = build(kind), nopad.packed(build(kind))
    batch = laid(kind)
    wanted = model(**batch).logits
    assert torch.equal(copy.deepcopy(model)(**batch).logits, wanted)
    for one, two in zip(logits_alone(model, samples(kind)), logits_alone(stock, samples(kind)), strict=True):
        assert torch.equal(one, two)
    assert torch.equal(model(**batch).logits, wanted)  # what an ordinary call remembers (rope_deltas) is not used
    with pytest.raises(NotPackSafeError):
        stock(**batch)
    nopad.unpacked(model)
    assert model.config.text_config._attn_implementation == stock.config.text_config._attn_implementation
    assert torch.equal(alone(model, samples(kind)[0]).logits, alone(stock, samples(kind)[0]).logits)


def changed(**given):
    return lambda batch: {**batch, **given}


def without(*names):
    return lambda batch: {name: value for name, value in batch.items() if name not in names}


def cut(name, count):
    return lambda batch: {**batch, name: batch[name][:count]}


def with_ids(function):
    def change(batch):
        ids = batch["input_ids"].clone()
        function(ids, torch.from_numpy(batch.sequence_ids))
        return {**batch, "input_ids": ids, "mm_token_type_ids": None}

    return change


def _move_a_token(ids, owner):
    """Take an image token of sequence 0, and give one to sequence 1: as many in all."""
    ids[(owner == 1) & (ids == pictures.IMAGE)] = torch.tensor([5, *[pictures.IMAGE] * 5])
    ids.view(-1)[(owner == 2).view(-1).nonzero()[0]] = pictures.IMAGE


def _pad_with_an_image(ids, owner):
    ids[owner == 0] = pictures.IMAGE


def _split_an_image(ids, owner):
    at = (owner == 1).view(-1).nonzero()[:, 0]
    flat = ids.view(-1)
    [*_, last] = [place for place in at if flat[place] == pictures.IMAGE]
    flat[last], flat[last + 1] = flat[last + 1].clone(), flat[last].clone()


WRONG = {
    "no pixels": (without("pixel_values"), "the batch has 6 images, and no pixel_values were given"),
    "no grid": (without("image_grid_thw"), "image_grid_thw are missing"),
    "a grid too few": (cut("image_grid_thw", 5), r"image_grid_thw are \[5, 3\], and the batch has 6 images"),
    "a patch too few": (cut("pixel_values", -1), r"pixel_values are \[143, 96\].*expected \[144, 96\]"),
    "odd patches": (
        lambda batch: {**batch, "image_grid_thw": batch["image_grid_thw"] - torch.tensor([0, 1, 0])},
        r"image 0 of the batch has the grid .*; height and width are multiples of 2",
    ),
    "moved": (
        with_ids(_move_a_token),
        r"sequence 0 has 5 image tokens \(90\), and its 1 image gives 6 in Qwen2VLForConditionalGeneration",
    ),
    "padding": (with_ids(_pad_with_an_image), "padding holds the image token 90; build the batch with another pad_id"),
    "split": (with_ids(_split_an_image), r"image tokens of sequence 0 come in runs of \[5, 1\], and its images give"),
    "kinds": (
        lambda batch: {**batch, "mm_token_type_ids": 2 * batch["mm_token_type_ids"]},
        "mm_token_type_ids hold 2 at place 4 of sequence 0; they are 1 at image tokens, 2 at video tokens and 0 at oth",
    ),
    "kinds that are no numbers": (
        lambda batch: {**batch, "mm_token_type_ids": batch["mm_token_type_ids"] * float("nan")},
        "mm_token_type_ids hold nan at place 0 of sequence 0; they are",
    ),
    "video": (
        changed(pixel_values_videos=torch.zeros(4, 96)),
        "pixel_values_videos were given, and .* does not say which",
    ),
    "features": (changed(mm_encoder_outputs={}), "mm_encoder_outputs were given .*give pixel_values"),
    "positions": (changed(position_ids=torch.zeros(3, 3, 40, dtype=torch.long)), "position_ids have the shape"),
    "lists": (changed(pixel_values=[1.0]), "pixel_values are of type list; expected a tensor"),
    "elsewhere": (
        lambda batch: {**batch, "pixel_values": batch["pixel_values"].to("meta")},
        r"pixel_values are on meta and the model on cpu; use batch\.to",
    ),
}


class TestRefused:
    @pytest.mark.parametrize("name", sorted(WRONG))
    def test_calls(self, name):
        """Before anything of the model runs."""
        model, (change, says) = nopad.packed(build("qwen2_vl")), WRONG[name]
        ran = []
        for module in model.model.children():
            module.register_forward_pre_hook(lambda *_: ran.append(1))
        batch = laid("qwen2_vl")
        with pytest.raises(BatchError, match=says):
            model(**change(batch))
        assert not ran
        model(**batch)

    def test_images_of_llava(self):
        model, batch = nopad.packed(build("llava")), laid("llava")
        with pytest.raises(BatchError, match=r"pixel_values are \[5, 3, 16, 16\], and the batch has 6 images"):
            model(**{**batch, "pixel_values": batch["pixel_values"][:5]})
        with pytest.raises(BatchError, match=r"LlavaForConditionalGeneration takes \[6, 3, 16, 16\]"):
            model(**{**batch, "pixel_values": torch.zeros(6, 3, 32, 32)})
        with pytest.raises(BatchError, match=r"sequence 0 has 16 image tokens .* 1 image gives 17 in Llava"):
            model(**batch, vision_feature_select_strategy="full")
        with pytest.raises(BatchError, match="image_sizes were given to LlavaForConditionalGeneration"):
            model(**batch, image_sizes=torch.ones(6, 2))

    def test_images_without_their_sequences(self):
        model, sample = nopad.packed(build("llava")), samples("llava")[0]
        batch = nopad.PackedBatch.from_sequences([sample["input_ids"][0], [5, 6]])
        with pytest.raises(BatchError, match=r"sequence 0 has 16 image tokens .* has none.* give 0"):
            model(**batch)
        with pytest.raises(BatchError, match="does not say which sequences they are of; build it with"):
            model(**batch, pixel_values=sample["pixel_values"])

    def test_models_of_text(self):
        text = nopad.packed(t.LlamaForCausalLM(t.LlamaConfig(**pictures.TEXT)))
        with pytest.raises(BatchError, match="the batch has 6 images, and LlamaForCausalLM takes none; give the feat"):
            text(**laid("llava"))

    def test_embeddings(self):
        batch = nopad.PackedBatch.from_embeddings([torch.zeros(3, 24, dtype=torch.float64)])
        with pytest.raises(
            BatchError, match=r"inputs_embeds were given to LlavaForConditionalGeneration.*by their ids"
        ):
            nopad.packed(build("llava"))(**batch)

    def test_ways_to_run(self):
        model, batch = nopad.packed(build("qwen2_vl")), laid("qwen2_vl")
        with pytest.raises(UnsupportedModelError, match="not compiled whole on packs, since its images differ"):
            static_inputs(model, batch)
        with pytest.raises(BatchError, match="this batch has 6 images, and a model may count the positions"):
            laid("qwen2_vl", nopad.Flat()).as_flash_kwargs()
        model.set_attn_implementation("sdpa")
        with pytest.raises(UnsupportedModelError, match="was set to 'sdpa' after it was made pack-safe"):
            model(**batch)

    @pytest.mark.parametrize(
        ("config", "says"),
        [
            (lambda: pictures.llava("pixtral"), "and this one is 'pixtral'"),
            (lambda: pictures.llava(text="gpt2"), "and this one is 'gpt2'"),
            (
                lambda: pictures.qwen2_vl(rope_parameters={**pictures.ROPE, "rope_type": "dynamic", "factor": 2.0}),
                "rotary frequencies of type 'dynamic' would depend on the longest sequence",
            ),
        ],
    )
    def test_configurations(self, config, says):
        with pytest.raises(UnsupportedModelError, match=says):
            nopad.packed(_shell(config()))

    @pytest.mark.parametrize(
        ("kind", "says"),
        [
            ("mllama", "attends to images by cross attention"),
            ("qwen3_omni_moe_thinker", "DeepStack"),
            ("qwen2_vl_text", "make the whole model pack-safe"),
            ("qwen3_vl_text", "make the whole model pack-safe"),
            ("gemma3", "see each other in both directions"),
            ("llava_next", "cuts images into tiles"),
            ("glm4v", "M-RoPE"),
        ],
    )
    def test_kinds(self, kind, says):
        assert kind in t.CONFIG_MAPPING
        config = t.PretrainedConfig()
        config.model_type = kind
        with pytest.raises(UnsupportedModelError, match=f"{kind} cannot run on packs: .*{says}"):
            nopad.packed(_shell(config))


def _shell(config):
    model = torch.nn.Module()
    model.config = config
    return model
