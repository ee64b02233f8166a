"""Models whose tokens are made of images: packed against the stock model on each image alone, in float64."""

from __future__ import annotations

import pytest
import torch
import transformers as t

import nopad
from nopad.errors import BatchError, UnsupportedModelError
from nopad.model import static_inputs
from nopad.model.families import FAMILIES, FRONTS

SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
CLASSES = {"deit": "DeiT", "vit": "ViT", "vit_msn": "ViTMSN"}
FORMS = [nopad.Flat(), nopad.Rows(40), nopad.Rows(25, end_to_end=True)]
SHAPES = [(32, 16), (8, 8), (32, 32), (24, 56), (16, 16)]


def build(kind, head="Model"):
    torch.manual_seed(0)
    name = CLASSES[kind]
    config = getattr(t, f"{name}Config")(**SIZES, image_size=32, patch_size=8, num_labels=3)
    return getattr(t, f"{name}{head}")(config).double().eval()


def images():
    generator = torch.Generator().manual_seed(1)
    return [torch.rand(1, 3, *shape, generator=generator, dtype=torch.float64) for shape in SHAPES]


def laid(model, form=FORMS[1]):
    base = getattr(model, model.base_model_prefix, model)
    states = [base.embeddings(image, interpolate_pos_encoding=True)[0] for image in images()]
    return nopad.PackedBatch.from_embeddings(states, form, columns={"labels": [0, 1, 2, 0, 1]})


def test_every_kind_is_here():
    assert set(FRONTS) == set(CLASSES)
    assert not set(FRONTS) & set(FAMILIES)


@torch.no_grad()
@pytest.mark.parametrize("kind", sorted(CLASSES))
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_states_and_results_are_those_alone(kind, form):
    base, classifier = build(kind), build(kind, "ForImageClassification")
    alone = [base(image, interpolate_pos_encoding=True) for image in images()]
    logits = [classifier(image, interpolate_pos_encoding=True).logits[0] for image in images()]
    nopad.packed(base)
    nopad.packed(classifier)
    batch = laid(base, form)
    del batch["labels"]
    out = base(**batch)
    for found, wanted in zip(batch.unpack_tokens(out.last_hidden_state), alone, strict=True):
        assert (found - wanted.last_hidden_state[0]).abs().max() < 1e-12
    if kind != "vit_msn":  # which has no pooler
        assert (out.pooler_output - torch.cat([one.pooler_output for one in alone])).abs().max() < 1e-12
    batch = laid(classifier, form)
    result = classifier(**batch)
    assert (result.logits - torch.stack(logits)).abs().max() < 1e-12
    wanted = torch.nn.functional.cross_entropy(torch.stack(logits), batch["labels"])
    assert float(result.loss) == pytest.approx(float(wanted), abs=1e-12)


def test_gradients_are_those_alone():
    """Also of the front end's own weights, which are used before packing."""
    model = build("vit", "ForImageClassification")
    loss = sum(model(image, interpolate_pos_encoding=True).logits.square().sum() for image in images())
    wanted = torch.autograd.grad(loss, list(model.parameters()))
    nopad.packed(model)
    batch = laid(model)
    del batch["labels"]
    found = torch.autograd.grad(model(**batch).logits.square().sum(), list(model.parameters()))
    for (name, _), mine, theirs in zip(model.named_parameters(), found, wanted, strict=True):
        assert (mine - theirs).abs().max() <= 1e-12 * max(1, float(theirs.abs().max())), name
    assert any("patch_embeddings" in name for name, _ in model.named_parameters())


def test_ordinary_calls_are_what_they_were():
    model = build("vit")
    before = [model(image, interpolate_pos_encoding=True).last_hidden_state for image in images()]
    nopad.packed(model)
    model(**_states(model))
    assert all(
        torch.equal(model(image, interpolate_pos_encoding=True).last_hidden_state, one)
        for image, one in zip(images(), before, strict=True)
    )
    nopad.unpacked(model)
    assert torch.equal(model(images()[0], interpolate_pos_encoding=True).last_hidden_state, before[0])


def _states(model):
    batch = laid(model)
    del batch["labels"]
    return batch


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"pixel_values": torch.zeros(1, 3, 32, 32)}, "pixel_values were given to ViTModel with a packed batch"),
        ({"bool_masked_pos": torch.zeros(1, 9, dtype=torch.bool)}, "bool_masked_pos were given"),
        ({"interpolate_pos_encoding": True}, "interpolate_pos_encoding were given"),
        ({"input_ids": torch.zeros(3, 40, dtype=torch.long)}, "input_ids were given"),
        ({"inputs_embeds": None}, r"inputs_embeds are missing; ViTModel takes \[R, L, 16\]"),
        ({"inputs_embeds": torch.zeros(3, 40, 8)}, r"inputs_embeds are \[3, 40, 8\]; ViTModel takes \[R, L, 16\]"),
        ({"inputs_embeds": torch.zeros(2, 9, 16).double()}, "inputs_embeds are"),
    ],
)
def test_what_a_packed_call_does_not_take(given, says):
    model = nopad.packed(build("vit"))
    with pytest.raises(BatchError, match=says):
        model(**{**_states(model), **given})


def test_ids_are_no_patches():
    with pytest.raises(BatchError, match="input_ids were given to ViTModel"):
        nopad.packed(build("vit"))(**nopad.PackedBatch.from_sequences([[1, 2], [3]]))


def test_what_is_refused():
    model = nopad.packed(build("vit"))
    with pytest.raises(UnsupportedModelError, match="not compiled whole on packs"):
        static_inputs(model, _states(model))
    with pytest.raises(UnsupportedModelError, match="head of ViTForMaskedImageModeling"):
        nopad.packed(build("vit", "ForMaskedImageModeling"))


@pytest.mark.parametrize("backend", ["mask", "repack", "segments"])
def test_backends(backend):
    model = build("vit")
    alone = [model(image, interpolate_pos_encoding=True).last_hidden_state[0] for image in images()]
    nopad.packed(model, backend=backend)
    batch = _states(model)
    for found, wanted in zip(batch.unpack_tokens(model(**batch).last_hidden_state), alone, strict=True):
        assert (found - wanted).abs().max() < 1e-12
