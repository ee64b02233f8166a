"""`audit` of models that take images: it draws them by the configuration, passes what is right and finds what leaks."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import transformers as t

import nopad
from nopad.auditing import find_fix, trace
from nopad.batch.images import COLUMNS
from nopad.errors import OptionError, UnsupportedModelError
from nopad.model.safety import is_packed

SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
TEXT = {**SIZES, "vocab_size": 60, "num_key_value_heads": 1, "max_position_embeddings": 96, "pad_token_id": 0}
MARKS = {"image_token_id": 50, "video_token_id": 53, "vision_start_token_id": 51, "vision_end_token_id": 52}


def qwen(**more):
    rope = {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 10000.0}
    eye = {"depth": 2, "embed_dim": 16, "hidden_size": 16, "num_heads": 2, "mlp_ratio": 2, "patch_size": 4}
    text = {**TEXT, "rope_parameters": rope, "bos_token_id": 1, "eos_token_id": 2, **more}
    return t.Qwen2VLConfig(vision_config=eye, text_config=text, **MARKS)


def deep(experts=False):
    rope = {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 10000.0}
    eye = {"depth": 2, "hidden_size": 16, "out_hidden_size": 16, "num_heads": 2, "intermediate_size": 24}
    eye |= {"patch_size": 4, "num_position_embeddings": 16, "deepstack_visual_indexes": [0]}
    text = {**TEXT, "rope_parameters": rope, "head_dim": 8}
    if experts:
        text |= {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
    return (t.Qwen3VLMoeConfig if experts else t.Qwen3VLConfig)(vision_config=eye, text_config=text, **MARKS)


def seconds():
    rope = {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 10000.0}
    eye = {"depth": 2, "hidden_size": 16, "out_hidden_size": 16, "num_heads": 2, "intermediate_size": 24}
    eye |= {"patch_size": 4, "window_size": 16, "fullatt_block_indexes": [1]}
    return t.Qwen2_5_VLConfig(vision_config=eye, text_config={**TEXT, "rope_parameters": rope}, **MARKS)


def llava():
    eye = {"model_type": "clip_vision_model", **SIZES, "image_size": 16, "patch_size": 4}
    return t.LlavaConfig(vision_config=eye, text_config={"model_type": "llama", **TEXT}, image_token_index=50)


def vit():
    return t.ViTConfig(**SIZES, image_size=32, patch_size=8)


MODELS = {
    "qwen2_vl": lambda: t.Qwen2VLForConditionalGeneration(qwen()),
    "qwen2_vl, base": lambda: t.Qwen2VLModel(qwen()),
    "qwen2_5_vl": lambda: t.Qwen2_5_VLForConditionalGeneration(seconds()),
    "qwen3_vl": lambda: t.Qwen3VLForConditionalGeneration(deep()),
    "qwen3_vl_moe": lambda: t.Qwen3VLMoeForConditionalGeneration(deep(experts=True)),
    "llava": lambda: t.LlavaForConditionalGeneration(llava()),
    "vit": lambda: t.ViTModel(vit()),
    "vit, head": lambda: t.ViTForImageClassification(vit()),
}


@pytest.fixture
def built(request):
    torch.manual_seed(0)
    return MODELS[request.param]()


@pytest.mark.parametrize("built", list(MODELS), indirect=True)
def test_models_with_images_are_audited(built):
    verdict = nopad.audit(built)
    assert verdict.isolated, str(verdict)
    assert verdict.model == type(built).__name__
    names = [check.name for check in verdict.checks]
    for dtype in ("float64", "float32"):
        assert {f"{dtype} outputs, in order", f"{dtype} gradients, reversed", f"{dtype} poison, NaN"} <= set(names)
        assert f"{dtype} poison, another sample" in names
    assert {"flat", "rows", "end"} == {part.split()[0] for part in verdict.checks[0].detail.split(", ")}
    assert verdict.notes[0].startswith("its images were drawn")
    assert not is_packed(built)


@pytest.mark.parametrize("built", ["llava"], indirect=True)
def test_images_that_see_each_other_are_found(built):
    """A tower that mixes the images of a batch: sequences get a share of their neighbours' images."""

    def mix(module, args, output):
        return output + output.mean(0, keepdim=True)

    built.model.vision_tower.embeddings.register_forward_hook(mix)
    verdict = nopad.audit(built, gradients=False)
    assert verdict.outcome == "contaminated"
    failed = {check.name for check in verdict.checks if not check.passed}
    assert {"float64 outputs, in order", "float64 poison, another sample", "float32 poison, other values"} <= failed


@pytest.mark.parametrize("built", ["qwen2_5_vl", "qwen3_vl"], indirect=True)
def test_videos_that_see_each_other_are_found(built):
    """A tower that mixes what has steps in time: only videos show it."""

    def mix(module, args, kwargs, output):
        if (kwargs["grid_thw"][:, 0] > 1).any():
            output.pooler_output = output.pooler_output + 1e-3 * output.pooler_output.mean(0, keepdim=True)
        return output

    built.model.visual.register_forward_hook(mix, with_kwargs=True)
    verdict = nopad.audit(built, gradients=False)
    assert not verdict.isolated
    failed = {check.name for check in verdict.checks if not check.passed}
    assert {"float64 outputs, in order", "float64 poison, another sample", "float32 poison, other values"} <= failed


@pytest.mark.parametrize("built", ["qwen2_vl"], indirect=True)
def test_tokens_that_see_each_other_are_found(built):
    """A text model that mixes along rows: only another sample, with other tokens, shows it in rows without images."""

    def mix(module, args, output):
        return output + 1e-3 * output.mean(1, keepdim=True)

    built.model.language_model.layers[1].mlp.register_forward_hook(mix)
    verdict = nopad.audit(built, gradients=False)
    assert not verdict.isolated
    assert 1e-8 < verdict.max_abs_diff < 1


@pytest.mark.parametrize("built", ["llava"], indirect=True)
@pytest.mark.parametrize("backend", ["mask", "repack"])
def test_backends(built, backend):
    verdict = nopad.audit(built, backend=backend)
    assert verdict.isolated, str(verdict)
    assert f"backend {backend!r}" in verdict.how
    assert ("end to end" in verdict.checks[0].detail) == (backend != "mask")
    packed = nopad.packed(built, backend=backend)
    assert nopad.audit(packed, gradients=False).isolated
    with pytest.raises(OptionError, match=rf"pack-safe by backend '{backend}'"):
        nopad.audit(packed, backend="segments")


def test_the_same_seed_gives_the_same_numbers():
    torch.manual_seed(0)
    model = MODELS["llava"]()
    first, again, other = (nopad.audit(model, gradients=False, seed=seed).checks for seed in (1, 1, 2))
    assert first == again
    assert [check.value for check in first] != [check.value for check in other]


@pytest.mark.parametrize("built", ["vit", "qwen2_vl"], indirect=True)
def test_what_says_nothing_of_images_is_refused(built):
    for call in (nopad.audit, trace):
        for capacity in (16, 32, 64):
            with pytest.raises(OptionError, match=rf"capacity is {capacity}, .* takes images.*leave capacity out"):
                call(built, capacity=capacity)


@pytest.mark.parametrize("built", ["vit"], indirect=True)
def test_collators_have_no_images_for_models_of_images_alone(built):
    for call in (nopad.audit, trace):
        with pytest.raises(OptionError, match=r"makes its tokens from images, .* audit it without a collator, or"):
            call(built, collator=t.default_data_collator)


@pytest.mark.parametrize("built", ["qwen2_vl", "qwen3_vl", "llava", "vit, head"], indirect=True)
def test_the_first_layers(built):
    before = built.config.get_text_config().num_hidden_layers
    verdict = nopad.audit(built, layers=1)
    assert verdict.isolated, str(verdict)
    assert verdict.notes[0].startswith("the first 1 of 2 layers only")
    assert built.config.get_text_config().num_hidden_layers == before == 2
    with pytest.raises(OptionError, match=r"layers is 3; this .* has 2"):
        nopad.audit(built, layers=3)
    found = trace(built, layers=1)
    assert found.isolated
    assert not any("layers.1" in name and "vision" not in name for name in found.modules)


class TestTraces:
    @pytest.mark.parametrize("built", [name for name in MODELS if "moe" not in name], indirect=True)
    def test_nothing_leaves_a_sequence(self, built):
        found = trace(built, poisoned="each")
        assert found.isolated, found.summary()
        assert found.first_leak is None
        for number, at in enumerate(found.poisoned):
            own = found.sequences == found.sequences[at]
            moved = np.nan_to_num(found.influence[number, -1])
            assert moved[own].any()
            assert not moved[~own].any()

    @pytest.mark.parametrize("built", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl", "llava"], indirect=True)
    def test_an_image_moves_its_own_tokens_in_the_tower(self, built):
        """Token 4 of sequence 0 is of its image; a tower has no values for text."""
        found = trace(built, poisoned=[(0, 4)])
        tower = [at for at, name in enumerate(found.modules) if name.startswith(("model.visual.b", "model.vision"))]
        assert len(tower) > 4
        for at in tower:
            if ", call 2" in found.modules[at]:
                assert not np.nan_to_num(found.matrix[at]).any()  # videos stay as they are
                continue
            own = found.sequences == 0
            places = np.flatnonzero(~np.isnan(found.matrix[at]) & own)
            assert places[0] == np.flatnonzero(own)[0] + 4  # three of text, and one that begins the image
            moved = found.matrix[at][places]
            assert (moved == moved[0]).all()
            assert not np.nan_to_num(found.matrix[at][~own]).any()
        assert found.matrix[tower].max(initial=0, where=~np.isnan(found.matrix[tower])) > 1e-3
        assert found.modules[found.drawn[0]].startswith(("model.visual", "model.vision_tower"))

    @pytest.mark.parametrize("built", ["llava"], indirect=True)
    def test_a_tower_that_mixes_images_is_named(self, built):
        built.model.vision_tower.embeddings.register_forward_hook(lambda m, args, out: out + out.mean(0, keepdim=True))
        found = trace(built)
        assert found.first_leak == "model.vision_tower.embeddings"
        assert found.reached == sorted({0, 2, 4} - {int(found.sequences[found.poisoned[0]])})

    @pytest.mark.parametrize("built", ["qwen3_vl"], indirect=True)
    def test_a_text_model_that_mixes_rows_is_named(self, built):
        layer = built.model.language_model.layers[1].mlp
        layer.register_forward_hook(lambda m, args, out: out + 1e-3 * out.mean(1, keepdim=True))
        found = trace(built)
        assert found.first_leak == "model.language_model.layers.1.mlp"


def together(features):
    """A collator that lays texts one after another, with the images of all, and says nothing of borders."""
    rows = [name for name in ("input_ids", "labels", "mm_token_type_ids") if name in features[0]]
    batch = {name: torch.tensor([[value for one in features for value in one[name]]]) for name in rows}
    for name in ("pixel_values", "image_grid_thw", "pixel_values_videos", "video_grid_thw"):
        shown = [one[name] for one in features if name in one]
        batch |= {name: torch.cat(shown)} if shown else {}
    return batch


class TestCollators:
    @pytest.mark.parametrize("built", ["qwen2_vl", "llava"], indirect=True)
    def test_texts_that_see_each_other(self, built):
        verdict = nopad.audit(built, collator=together, gradients=False)
        assert verdict.outcome == "contaminated"
        # The second is the first difference with transformers 5.9.
        assert verdict.first_difference in (
            "model.language_model.rotary_emb",
            "model.language_model.layers.0.self_attn.o_proj",
        )
        assert verdict.notes[0] == "its images were drawn by its configuration; no processor ran"
        assert trace(built, collator=together).first_leak.startswith("model.language_model.layers.0")

    @pytest.mark.parametrize("built", ["qwen2_vl", "qwen2_vl, base", "qwen3_vl", "llava"], indirect=True)
    def test_fixes(self, built):
        fix = find_fix(built, collator=together)
        axes = "" if built.config.model_type == "llava" else " with three axes"
        assert [change.name for change in fix.changes] == [f"position_ids{axes}", "block-diagonal attention_mask"]
        assert fix.verdict.isolated

    @pytest.mark.parametrize("built", ["qwen2_5_vl"], indirect=True)
    def test_nopads_own(self, built):
        model = nopad.packed(built)
        verdict = nopad.audit(model, collator=nopad.PackedBatch.from_features)
        assert verdict.isolated, str(verdict)


def padded(features, names):
    """A right collator for one micro-batch, which pads on the right; of images and videos it gives `names`."""
    width = max(len(one["input_ids"]) for one in features)
    rows = [name for name in ("input_ids", "labels", "mm_token_type_ids") if name in features[0]]
    fill = {"labels": -100}
    batch = {
        name: torch.tensor([[*one[name], *[fill.get(name, 0)] * (width - len(one[name]))] for one in features])
        for name in rows
    }
    lengths = torch.tensor([len(one["input_ids"]) for one in features])
    batch["attention_mask"] = (torch.arange(width) < lengths[:, None]).long()
    shown = {name: [one[name] for one in features if name in one] for name in names}
    return batch | {name: torch.cat(values) for name, values in shown.items() if values}


@pytest.mark.parametrize("built", ["qwen2_5_vl"], indirect=True)
def test_seconds_of_videos_that_a_collator_drops(built):
    """Positions of videos are counted by them, and a model without them takes 1 second."""
    right = nopad.audit(built, collator=lambda features: padded(features, COLUMNS), gradients=False)
    assert right.isolated, str(right)
    others = [name for name in COLUMNS if name != "second_per_grid_ts"]
    wrong = nopad.audit(built, collator=lambda features: padded(features, others), gradients=False)
    assert not wrong.isolated
    assert wrong.outcome == "different"  # no sequence sees another
    fix = find_fix(built, collator=lambda features: {**together(features), **seconds_of(features)})
    assert [change.name for change in fix.changes] == [
        "position_ids with three axes",
        "block-diagonal attention_mask",
    ]
    assert fix.verdict.isolated


def seconds_of(features):
    return {"second_per_grid_ts": torch.cat([one["second_per_grid_ts"] for one in features if "video_grid_thw" in one])}


def test_a_model_that_nopad_refuses():
    config = qwen()
    config.text_config.rope_parameters = {**config.text_config.rope_parameters, "rope_type": "dynamic", "factor": 2.0}
    with torch.device("meta"), pytest.raises(UnsupportedModelError, match="longest sequence of a batch"):
        nopad.audit(t.Qwen2VLModel(config))


def test_a_vocabulary_without_text():
    config = qwen(vocab_size=5)
    for number, name in enumerate(MARKS):
        setattr(config, name, number % 3 + 2)
    with pytest.raises(OptionError, match="leaves no tokens to draw"):
        nopad.audit(t.Qwen2VLModel(config))
