"""`audit` of models that take images: it draws them by the configuration, passes what is right and finds what leaks."""

from __future__ import annotations

import pytest
import torch
import transformers as t

import nopad
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
    for given in ({"layers": 1}, {"capacity": 32}):
        with pytest.raises(OptionError, match=f"{next(iter(given))} is .* takes images.*leave {next(iter(given))} out"):
            nopad.audit(built, **given)
    for call in (nopad.audit, nopad.auditing.trace):
        with pytest.raises(OptionError, match=r"takes images.*without a collator.*nopad\.audit_samples"):
            call(built, collator=t.default_data_collator)


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
