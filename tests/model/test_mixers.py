"""The mixer route on packs. `test_families` holds each kind against its sequences alone."""

from __future__ import annotations

import copy
from functools import lru_cache

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from kinds import tiny
from test_families import LIMIT, build, difference, gradients, skip_where_unsupported, slope, texts
from torch import nn
from transformers import CONFIG_MAPPING
from zoo import let

import nopad
from nopad.errors import BatchError, OptionError, UnsupportedModelError
from nopad.model import groups, mixers, static_inputs
from nopad.model.families import FAMILIES
from nopad.model.groups import chunk_size, grouped, with_even_chunks

FORMS = {
    "flat": nopad.Flat(),
    "rows": nopad.Rows(17),
    "end to end": nopad.Rows(13, end_to_end=True),
}
KINDS = sorted(kind for kind in FAMILIES if FAMILIES[kind].mixers and kind in CONFIG_MAPPING)
FEW = ("falcon_h1", "gptj", "lfm2", "mamba", "qwen3_next", "recurrent_gemma", "roformer", "zamba2")


def made(kind, dtype=torch.float64):
    skip_where_unsupported(kind)
    return build(tiny(kind), "base").to(dtype)


def batch_of(model, sequences, form="flat"):
    return nopad.PackedBatch.from_sequences(
        sequences, pad_id=getattr(model.config, "pad_token_id", None) or 0, form=FORMS[form]
    )


def parts(model, sequences, form="flat"):
    batch = batch_of(model, sequences, form)
    return [{"states": one} for one in batch.unpack_tokens(model(**batch).last_hidden_state)]


def alone(model, sequences):
    return [{"states": model(input_ids=one[None], use_cache=False).last_hidden_state[0]} for one in sequences]


def each_slope(found, wanted):
    """Return the `slope` of each gradient by itself, beside the largest value of all."""
    largest = torch.stack([one.abs().max() for one in wanted.values() if one.numel()]).max()
    return {name: slope({"": largest, name: found[name]}, {"": largest, name: one}) for name, one in wanted.items()}


@lru_cache(maxsize=1)
def alone_in_float32(kind):
    """Return the outputs and gradients of a model of this kind alone, and a limit for each gradient.

    The limit is 1e-5, but for gradients that float32 cannot compute so exactly alone either: small differences of large
    terms (the decays of a gated delta rule). How exact they are is how far they move in float64, and with weights that
    are rounded otherwise; the limit is four times that.
    """
    model, exact, signs = made(kind, torch.float32), made(kind), torch.Generator().manual_seed(0)
    exact.load_state_dict(model.state_dict())
    sequences = texts(model.config)
    wanted = alone(model, sequences)
    slopes = gradients(model, wanted)
    others = [gradients(exact, alone(exact, sequences))]
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(1 + 6e-8 * torch.randn(weight.shape, generator=signs).sign())
    others.append(gradients(model, alone(model, sequences)))
    moved = [each_slope(one, slopes) for one in others]
    return wanted, slopes, {name: max(1e-5, 4 * max(one[name] for one in moved)) for name in slopes}


@pytest.mark.parametrize("call", [0, 3, 1000], ids="a call costs {}".format)
@pytest.mark.parametrize("kind", KINDS)
def test_float32_in_every_grouping_and_form(kind, call, monkeypatch):
    """The model's own arithmetic, much of it in float32 whatever its dtype."""
    monkeypatch.setattr(groups, "CALL", call)
    wanted, slopes, limits = alone_in_float32(kind)
    model = nopad.packed(made(kind, torch.float32))
    sequences = texts(model.config)
    for form in FORMS:
        found = parts(model, sequences, form)
        assert difference(found, wanted) <= 1e-5, form
        moved = each_slope(gradients(model, found), slopes)
        assert {name: one for name, one in moved.items() if one > limits[name]} == {}, form


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "mobilebert"])  # whose embeddings mix
def test_what_is_in_one_sequence_changes_no_other(kind, monkeypatch):
    monkeypatch.setattr(groups, "CALL", 3)
    model = nopad.packed(made(kind))
    sequences = texts(model.config)
    clean = parts(model, sequences, "rows")
    table = model.get_input_embeddings()

    def poisoned(_, args, output):
        bad = batch_of(model, sequences, "rows").sequence_ids == 3
        return output.masked_fill(torch.from_numpy(bad)[..., None], torch.nan)

    handle = table.register_forward_hook(let(model, poisoned))
    found = parts(model, sequences, "rows")
    handle.remove()
    assert not torch.isfinite(found[2]["states"]).any()
    for number in (0, 1, 3):
        assert float((found[number]["states"] - clean[number]["states"]).detach().abs().max()) <= 1e-12


@pytest.mark.parametrize("reentrant", [False, True], ids=["saved", "reentrant"])
@pytest.mark.parametrize("kind", KINDS)
def test_gradient_checkpointing_computes_again_in_the_layout_of_its_call(kind, reentrant, monkeypatch):
    """Two batches of other layouts, and an ordinary one, in one backward pass."""
    monkeypatch.setattr(groups, "CALL", 3)
    model = nopad.packed(made(kind)).train()
    if not model.supports_gradient_checkpointing:
        pytest.skip("transformers does not checkpoint it")
    sequences = texts(model.config)

    def losses():
        found = parts(model, sequences, "flat") + parts(model, sequences[::-1], "rows") + alone(model, sequences[:1])
        return gradients(model, found)

    wanted = losses()
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    enable({"use_reentrant": reentrant})
    if reentrant:
        model.enable_input_require_grads()
    assert slope(losses(), wanted) <= LIMIT
    nopad.unpacked(model)
    assert not any(isinstance(one.__dict__.get(mixers.CHECKPOINT), mixers.Carried) for one in model.modules())


@pytest.mark.parametrize("kind", FEW)
def test_autocast(kind):
    model = made(kind, torch.float32)
    sequences = texts(model.config)
    exact = alone(model, sequences)
    with torch.autocast("cpu", torch.bfloat16):
        rounded = difference(alone(model, sequences), exact)
        found = parts(nopad.packed(model), sequences, "rows")
    assert 1e-5 < difference(found, exact) <= 2 * rounded  # it computes in bfloat16, and rounds about as much as alone
    gradients(model, found)


@pytest.mark.parametrize("kind", FEW)
def test_copies_and_ordinary_calls(kind):
    model = made(kind).requires_grad_(
        False
    )  # RecurrentGemma keeps its last state, and a state with a graph is not copied
    sequences = texts(model.config)
    wanted = alone(model, sequences)
    nopad.packed(model)
    copied = copy.deepcopy(model)
    for one in (model, copied):
        assert difference(parts(one, sequences), wanted) <= 1e-6  # parts in float32
        assert difference(alone(one, sequences), wanted) == 0
    assert difference(alone(nopad.unpacked(model), sequences), wanted) == 0


@pytest.mark.parametrize("kind", FEW)
def test_the_audit_finds_no_leak(kind):
    verdict = nopad.audit(made(kind, torch.float32), capacity=16)
    assert verdict.isolated, verdict


def test_the_audit_finds_a_leak_of_4e_3(monkeypatch):
    """The first tokens of sequences take in 0.4 % of what the convolution gives for the token before."""
    join = groups.Groups.join

    def leaking(self, parts):
        found = join(self, parts)
        first = torch.cat([torch.zeros(1, dtype=torch.bool), self.index.diff() != 1])[:, None]
        return found + 4e-3 * found.roll(1, 0) * first

    monkeypatch.setattr(groups.Groups, "join", leaking)
    verdict = nopad.audit(made("lfm2", torch.float32), capacity=16)
    assert not verdict.isolated
    assert verdict.first_difference == "layers.0.conv"


@pytest.mark.parametrize("kind", ["bloom", *(kind for kind in FEW if kind != "roformer")])
def test_the_loss_is_that_of_the_sequences(kind):
    skip_where_unsupported(kind)
    model = build(tiny(kind), "causal LM").requires_grad_(False)
    sequences = [one for one in texts(model.config) if one.numel() > 1]
    labels = [torch.cat([torch.tensor([-100]), one[1:]]) for one in sequences]
    counts = [one.numel() - 1 for one in sequences]
    losses = [model(input_ids=one[None], labels=one[None]).loss for one in sequences]
    wanted = sum(float(one) * n for one, n in zip(losses, counts, strict=True)) / sum(counts)
    ids = sequences[0][None]  # Mamba's own loss takes no count in older versions of transformers
    counted = not torch.equal(losses[0], model(input_ids=ids, labels=ids, num_items_in_batch=torch.tensor(1)).loss)
    nopad.packed(model)
    batch = nopad.PackedBatch.from_sequences(sequences, columns={"labels": labels})
    assert float(model(**batch).loss) == pytest.approx(wanted, rel=1e-6)  # computed in float32
    if counted:
        given = model(**batch, num_items_in_batch=torch.tensor(2 * sum(counts))).loss
        assert float(given) == pytest.approx(wanted / 2, rel=1e-6)


class Mean(nn.Module):
    """Mixes a row in its own way."""

    def forward(self, hidden_states, **others):
        return hidden_states.cumsum(1)


def test_a_mixing_module_of_ones_own_is_noticed():
    model = made("lfm2")
    nopad.packed(model)
    sequences = texts(model.config)
    model.layers[0].conv = Mean()
    with pytest.raises(
        UnsupportedModelError,
        match=r"modules of your own class .*\.Mean were put into this Lfm2Model after it was made pack-safe",
    ):
        parts(model, sequences)


def test_a_module_that_is_not_run_is_noticed():
    model = nopad.packed(made("falcon_h1"))
    model.layers[1].mamba.forward = let(model, lambda **given: given["hidden_states"])  # still cut, run and joined
    parts(model, texts(model.config))
    model.layers[1].mamba = nn.Identity()
    model.layers[1].mamba.forward = let(model, lambda hidden_states, **given: hidden_states)
    with pytest.raises(
        UnsupportedModelError, match="asked nopad 3 times to keep sequences apart, and its configuration says 4"
    ):
        parts(model, texts(model.config))


def test_caches_are_refused():
    model = nopad.packed(made("mamba"))
    from transformers import DynamicCache

    with pytest.raises(BatchError, match="cache_params hold earlier tokens of rows"):
        model(**batch_of(model, texts(model.config)), cache_params=DynamicCache(config=model.config))
    given = model.layers[0].register_forward_pre_hook(
        let(model, lambda _, args, given: (args, {**given, "cache_params": DynamicCache(config=model.config)})),
        with_kwargs=True,
    )
    with pytest.raises(UnsupportedModelError, match="MambaMixer was given cache_params, which would hand its state"):
        parts(model, texts(model.config))
    given.remove()


def test_what_a_mixing_module_may_not_be_given():
    model = nopad.packed(made("lfm2"))
    model.layers[0].conv.register_forward_pre_hook(
        let(model, lambda _, args, given: (args, {**given, "scores": torch.zeros(4, 29)})),
        with_kwargs=True,
        prepend=True,
    )
    with pytest.raises(UnsupportedModelError, match=r"Lfm2ShortConv is given scores of the shape \[4, 29\], of which"):
        parts(model, texts(model.config))


def test_outputs_that_are_not_per_token_are_refused():
    model = nopad.packed(made("lfm2"))
    model.layers[0].conv.forward = let(model, lambda hidden_states, **given: hidden_states.mean(1))
    with pytest.raises(UnsupportedModelError, match=r"Lfm2ShortConv gives \[4, 32\] where \[4, 12\] tokens were given"):
        parts(model, texts(model.config))


def test_backends_of_attention_of_ones_own():
    with pytest.raises(
        OptionError, match="RemBertModel has attention of its own, which is run sequence by sequence; 'mask'"
    ):
        nopad.packed(made("rembert"), backend="mask")


REFUSED = {"falcon": {"alibi": True}, "rembert": {"is_decoder": True}, "roformer": {"is_decoder": True}}


@pytest.mark.parametrize("kind", REFUSED)
def test_variants_that_are_refused(kind):
    with pytest.raises(UnsupportedModelError, match=f"this {kind} cannot run on packs: "):
        nopad.packed(build(tiny(kind, **REFUSED[kind]), "base"))


@pytest.mark.parametrize("kind", ["bert", "convbert", "megatron-bert", "rembert"])
def test_rows_that_are_wider_than_the_table_of_token_types(kind):
    stock = build(tiny(kind), "base")
    model = nopad.packed(copy.deepcopy(stock))
    sequences = [[5 + n] * 30 for n in range(9)]
    batch = nopad.PackedBatch.from_sequences(sequences)
    assert batch.layout.shape[1] > 2 * model.config.max_position_embeddings
    with torch.no_grad():
        found = batch.unpack_tokens(model(**batch).last_hidden_state)
        for ids, one in zip(sequences, found, strict=True):
            alone = stock(torch.tensor([ids])).last_hidden_state[0]
            torch.testing.assert_close(one, alone, rtol=0, atol=1e-12)


def test_rows_that_are_narrower_than_a_sequence():
    model = nopad.packed(made("roformer"))
    with pytest.raises(BatchError, match="a sequence of 12 tokens crosses rows of 10, and this model counts positions"):
        model(**nopad.PackedBatch.from_sequences(texts(model.config), form=nopad.Rows(10, end_to_end=True)))


def test_compiled_and_static_calls_are_refused():
    model = nopad.packed(made("lfm2"), max_sequences=8)
    batch = batch_of(model, texts(model.config), "rows")
    with pytest.raises(UnsupportedModelError, match="Lfm2ShortConv modules of Lfm2Model are run sequence by sequence"):
        model(**static_inputs(model, batch))
    model.layers[0].compile(backend="eager")
    with pytest.raises(UnsupportedModelError, match="do not compile this model or its layers"):
        model(**batch)


def test_checkpoints_of_others_are_refused():
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    model = nopad.packed(made("lfm2"))
    model.layers[0] = checkpoint_wrapper(model.layers[0])
    with pytest.raises(UnsupportedModelError, match=r"use transformers' own, model.activation"):
        parts(model, texts(model.config))


@given(st.lists(st.integers(1, 60), min_size=1, max_size=12), st.integers(0, 100), st.booleans())
def test_groups_hold_every_sequence_once_and_cost_least(lengths, call, causal):
    def cost(groups):
        return sum(len(group) * max(lengths[n] for n in group) + call for group in groups)

    found = grouped(lengths, causal, call)
    assert sorted(number for group in found for number in group) == list(range(len(lengths)))
    by_length = [[n for n, one in enumerate(lengths) if one == size] for size in set(lengths)]
    if causal:
        assert cost(found) <= min(cost(by_length), cost([list(range(len(lengths)))]))
    else:
        assert sorted(map(sorted, found)) == sorted(by_length)


@given(st.integers(1, 2000), st.integers(1, 300))
def test_chunks_of_a_sequence_are_even_and_no_more_than_the_models_own(length, chunk):
    module = nn.Linear(2, 2)
    module.chunk_size = chunk
    even = with_even_chunks(module, length, chunk)
    assert module.chunk_size == chunk
    assert even.weight is module.weight
    own = -(-length // chunk)
    assert -(-length // even.chunk_size) == own
    assert length <= own * even.chunk_size < length + own or length % chunk == 0


def test_a_scan_fills_few_chunks_and_the_model_keeps_its_size(monkeypatch):
    from transformers.models.falcon_h1 import modeling_falcon_h1 as source

    if not hasattr(source, "mamba2_chunk_scan"):
        pytest.skip("this transformers scans inside the mixer, where its chunks cannot be seen")
    scan, seen = source.mamba2_chunk_scan, []

    def counting(states, *args, **kwargs):
        seen.append((states.shape[1], kwargs["chunk_size"]))
        return scan(states, *args, **kwargs)

    monkeypatch.setattr(source, "mamba2_chunk_scan", counting)
    monkeypatch.setattr(groups, "CALL", 0)
    model = made("falcon_h1")
    mixer = next(one for one in model.modules() if hasattr(one, "A_log"))
    mixer.chunk_size = 8
    sequences = [torch.arange(4, 4 + length) for length in (9, 15, 17)]
    wanted = alone(model, sequences)
    nopad.packed(model)
    seen.clear()
    assert difference(parts(model, sequences), wanted) <= 1e-6  # its scan computes in float32
    layers = model.config.num_hidden_layers
    assert sorted(seen) == sorted([(9, 5), (15, 8), (17, 6)] + [(9, 3), (15, 4), (17, 4)] * (layers - 1))
    assert mixer.chunk_size == 8
    assert chunk_size(mixer, torch.device("cuda")) == 0  # its kernels take powers of two
