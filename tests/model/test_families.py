"""Every kind of model in `FAMILIES`: packed against alone, outputs and gradients.

It writes a table of docs/internals/equality.md.

The judge is the stock model, run on one sequence at a time before nopad touches it. Among the tokens are the pad, bos
and eos ids, also at the end of a sequence. Everything is computed in float64 (`kinds.AllDouble`), so nothing but the
order of sums may differ.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
import transformers as t
import zoo
from kinds import CHANGES, EAGER, SINCE, AllDouble, tiny
from packaging.version import Version
from transformers import CONFIG_MAPPING

import nopad
from nopad.errors import UnsupportedModelError
from nopad.model.families import FAMILIES, family_of

PAGE = Path(__file__).resolve().parents[2] / "docs" / "internals" / "equality.md"
LIMIT = 1e-12
STACKS = sorted(kind for kind in FAMILIES if kind != "bart")  # BART: test_encoder_decoder
FORMS = {"flat": {"form": nopad.Flat()}, "rows": {"form": nopad.Rows(17)}}
# Whole outputs of a model, and what reads one token of a sequence.
HEADS = {
    "base": "AutoModel",
    "masked LM": "AutoModelForMaskedLM",
    "causal LM": "AutoModelForCausalLM",
    "sequence classification": "AutoModelForSequenceClassification",
}
MEASURED: dict[str, tuple[list[str], float, float]] = {}


def test_every_kind_is_proven():
    assert len(FAMILIES) > 80
    assert set(SINCE) | EAGER | set(CHANGES) <= set(FAMILIES)
    assert set(zoo.CONFIGS) <= set(FAMILIES)


def config_of(kind, **more):
    return zoo.CONFIGS[kind]() if kind in zoo.CONFIGS else tiny(kind, **more)


def build(config, head):
    """The stock model with this head, in float64 throughout; None: transformers has none."""
    torch.manual_seed(0)
    how = {"experts_implementation": "eager"}  # the others compute in float32 at most
    if config.model_type in EAGER:
        how["attn_implementation"] = "eager"
    if (config.model_type, head) == ("t5", "base"):
        model = t.T5EncoderModel(config)
    elif type(config) in getattr(t, HEADS[head])._model_mapping:
        model = getattr(t, HEADS[head]).from_config(config, **how)
    else:
        return None
    with torch.no_grad():
        for parameter in model.parameters():  # biases of 0 would hide what is not added
            parameter.add_(torch.randn_like(parameter) * 0.05)
    return model.double().eval()


def heads_of(kind, config):
    if kind == "t5":
        return ["base"]
    decoder = FAMILIES[kind].pooled == "last"
    whole = "causal LM" if decoder and type(config) in t.AutoModelForCausalLM._model_mapping else "base"
    return [whole, "sequence classification"]


def texts(config, pads_inside=True) -> list[torch.Tensor]:
    """Four sequences with the pad, bos and eos ids among them; one ends with pads, one is a single token."""
    generator = torch.Generator().manual_seed(1)
    found = [torch.randint(4, 61, (n,), generator=generator) for n in (7, 1, 12, 9)]
    special = {name: getattr(config, f"{name}_token_id", None) for name in ("pad", "bos", "eos")}
    pad, bos, eos = (n if isinstance(n, int) and n < 61 else 2 for n in special.values())
    found[0][2] = pad if pads_inside else 5
    found[2][-1] = found[2][-2] = pad
    found[0][0] = bos
    found[0][4] = found[2][6] = eos
    return found


def gradients(model, outputs) -> dict[str, torch.Tensor]:
    """Of one number of all outputs, each weighed at random, so that every gradient counts."""
    model.zero_grad()
    total = torch.zeros((), dtype=torch.float64)
    for number, output in enumerate(outputs):
        generator = torch.Generator().manual_seed(number)
        for value in output.values():
            total = total + (value * torch.randn(value.shape, generator=generator, dtype=torch.float64)).sum()
    total.backward()
    return {n: torch.zeros_like(p) if p.grad is None else p.grad.clone() for n, p in model.named_parameters()}


def difference(found, wanted) -> float:
    """Largest difference of outputs over the largest value, or over 1."""
    pairs = [
        (found[n][name].detach(), value.detach()) for n, output in enumerate(wanted) for name, value in output.items()
    ]
    scale = max(1.0, *(float(value.abs().max()) for _, value in pairs))
    return max(float((mine - value).abs().max()) for mine, value in pairs) / scale


def slope(found, wanted) -> float:
    """Largest difference within a gradient over its largest value; where that is 0 in truth, over that of all."""
    largest = max(float(value.abs().max()) for value in wanted.values() if value.numel())
    worst = 0.0
    for name, value in wanted.items():
        if value.numel():
            size = float(value.abs().max())
            worst = max(worst, float((found[name] - value).abs().max()) / (size if size > 1e-9 * largest else largest))
    return worst


def unpacked(batch, values):
    """Split an output by what it is: per token or per sequence."""
    per_token = tuple(values.shape[:2]) == batch.layout.shape
    return batch.unpack_tokens(values) if per_token else batch.unpack_sequences(values)


def compare(model, sequences) -> tuple[float, float]:
    """Run a stock model alone, then make it pack-safe and run it on packs: differences of outputs and of gradients."""
    wanted = []
    for sequence in sequences:
        output = model(input_ids=sequence[None])
        wanted.append({name: value[0] for name, value in output.items() if torch.is_tensor(value)})
    slopes = gradients(model, wanted)
    nopad.packed(model)
    worst = sloped = 0.0
    for how in FORMS.values():
        batch = nopad.PackedBatch.from_sequences(
            sequences, pad_id=getattr(model.config, "pad_token_id", None) or 0, **how
        )
        output = model(**batch)
        parts = {name: unpacked(batch, output[name]) for name in wanted[0]}
        found = [{name: parts[name][n] for name in parts} for n in range(len(sequences))]
        worst, sloped = max(worst, difference(found, wanted)), max(sloped, slope(gradients(model, found), slopes))
    again = model(input_ids=sequences[0][None])  # a pack-safe model still runs as it did
    assert difference([{name: again[name][0] for name in wanted[0]}], wanted[:1]) <= LIMIT
    return worst, sloped


def skip_where_unsupported(kind) -> None:
    """Kinds that an older transformers does not have are skipped, and those whose attention it does not register."""
    if kind not in CONFIG_MAPPING:
        pytest.skip(f"transformers {t.__version__} has no {kind}")
    if kind == "t5":
        zoo.skip_where_unsupported(kind)
    if Version(t.__version__) < Version(FAMILIES[kind].since or "0"):
        with pytest.raises(UnsupportedModelError, match=f"{kind} runs on packs from transformers "):
            family_of(config_of(kind))
        pytest.skip(f"{kind} is refused in transformers {t.__version__}")
    if Version(t.__version__) < Version(SINCE.get(kind, "0")):
        with pytest.raises(UnsupportedModelError, match="does not take a registered attention; newer versions may"):
            nopad.packed(build(config_of(kind), "base"))
        pytest.skip(f"{kind} is off the interface in transformers {t.__version__}")


@pytest.mark.parametrize("kind", STACKS)
def test_packed_equals_alone(kind):
    skip_where_unsupported(kind)
    config = config_of(kind)
    heads, worst, sloped = [], 0.0, 0.0
    with AllDouble():
        for head in heads_of(kind, config):
            model = build(config_of(kind), head)
            if model is None:
                continue
            differs, slopes = compare(model, texts(config, FAMILIES[kind].pads_inside))
            assert differs <= LIMIT, (head, differs)
            assert slopes <= LIMIT, (head, slopes)
            heads.append(head)
            worst, sloped = max(worst, differs), max(sloped, slopes)
    MEASURED[kind] = (heads, worst, sloped)


def test_the_page_has_every_kind():
    """With NOPAD_WRITE_DOCS=1 the table is written, of all tests of this file in one process (-n 0)."""
    text = PAGE.read_text()
    begin, end = text.index("| kind |"), text.index("\n\n", text.index("| kind |"))
    if os.environ.get("NOPAD_WRITE_DOCS"):
        assert sorted(MEASURED) == STACKS
        rows = [f"| {kind} | {', '.join(heads)} | {a:.0e} / {b:.0e} |" for kind, (heads, a, b) in MEASURED.items()]
        table = "\n".join(["| kind | heads | outputs / gradients |", "|---|---|---|", *rows])
        PAGE.write_text(text[:begin] + table + text[end:])
        text = PAGE.read_text()
        end = text.index("\n\n", begin)
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text[begin:end].splitlines()[2:]]
    assert [row[0] for row in rows] == STACKS
    for kind, heads, differences in rows:
        assert len(heads) > 3, kind
        assert all(float(number) <= LIMIT for number in differences.split(" / ")), kind


MIXED = ["sliding_attention", "full_attention"] * 2
VARIANTS = {
    "a window in some layers": ("qwen2", {"use_sliding_window": True, "max_window_layers": 1}),
    "a window in all layers": ("starcoder2", {}),
    "both sides": ("gemma3_text", {"use_bidirectional_attention": True}),
    "keys of other layers": ("gemma4_text", {"num_hidden_layers": 4, "num_kv_shared_layers": 2, "layer_types": MIXED}),
    "keys of other layers, older": ("gemma3n_text", {"num_kv_shared_layers": 1}),
    "a mean of logits": ("eurobert", {"classifier_pooling": "late"}),
    "the first token": ("eurobert", {"classifier_pooling": "bos"}),
    "a mean of states": ("eurobert", {"classifier_pooling": "mean"}),
    "a decoder's BERT": ("ernie", {"is_decoder": True}),
    "the old eos of CLIP": ("clip_text_model", {"eos_token_id": 2}),
    "one key for all heads": ("gpt_bigcode", {"multi_query": True}),
    "half of the angles": ("stablelm", {"partial_rotary_factor": 0.5}),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_variants_of_a_kind(variant):
    kind, changes = VARIANTS[variant]
    skip_where_unsupported(kind)
    with AllDouble():
        for head in heads_of(kind, config := tiny(kind, **changes)):
            model = build(config, head)
            if model is not None:
                assert max(compare(model, texts(config))) <= LIMIT, head


REFUSED = {
    "phimoe": {"sliding_window": 5},
    "gemma2": {"use_bidirectional_attention": True},
    "gemma4_text": {"use_bidirectional_attention": "all"},
    "llama": {"is_causal": False},
}


@pytest.mark.parametrize("kind", REFUSED)
def test_variants_that_no_attention_can_tell(kind):
    """What their layers see is in their own masks only, or depends on whether a batch is padded."""
    skip_where_unsupported(kind)
    config = tiny(kind)
    for name, value in REFUSED[kind].items():
        setattr(config, name, value)
    with pytest.raises(UnsupportedModelError, match=f"this {kind} cannot run on packs: "):
        nopad.packed(build(config, "base"))


def test_a_window_that_a_layer_does_not_tell():
    """Qwen2-MoE's masks have a window where so configured, and its layers do not tell their attention of it."""
    config = tiny("qwen2_moe", use_sliding_window=True, layer_types=["sliding_attention"] * 2)
    model = nopad.packed(build(config, "base"))
    with pytest.raises(UnsupportedModelError, match=r"Attention of layer 0 attends within a window and does not tell"):
        model(**nopad.PackedBatch.from_sequences(texts(config)))
