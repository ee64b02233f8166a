"""Traces of a poisoned token: a planted leak is seen at its layer and tokens; sound models are block-diagonal."""

from __future__ import annotations

import copy
import json
import re
import xml.etree.ElementTree as ElementTree
from functools import cache

import numpy as np
import pytest
import test_families
import torch
import transformers as t
from hypothesis import given, settings
from hypothesis import strategies as st
from kinds import tiny
from zoo import build

import nopad
from nopad.auditing import trace
from nopad.auditing.probes import lengths_for
from nopad.auditing.tokens import Tokens, draw
from nopad.errors import BatchError, OptionError, UnsupportedModelError

LENGTHS = [16, 1, 9, 4, 2, 7]
FLATTENING = t.DataCollatorWithFlattening(return_tensors="pt")


@cache
def small():
    return build("bert", num_hidden_layers=1)


def from_the_left(share):
    """A hook that adds to each token a share of the one before it, whatever sequence that belongs to."""

    def leak(module, args, output):
        states = output[0] if isinstance(output, tuple) else output
        mixed = states + share * torch.nn.functional.pad(states[:, :-1], (0, 0, 1, 0))
        return (mixed, *output[1:]) if isinstance(output, tuple) else mixed

    return leak


def moved(found, module, poisoned=0):
    """The columns that moved in a module."""
    return np.flatnonzero(np.nan_to_num(found.influence[poisoned, found.modules.index(module)]) > 0).tolist()


def columns_of(found, *sequences):
    return np.flatnonzero(np.isin(found.sequences, sequences)).tolist()


class TestSound:
    @pytest.mark.parametrize("kind", ["bert", "llama", "modernbert", "deberta", "albert"])
    def test_is_block_diagonal(self, kind):
        found = trace(build(kind), poisoned="each")
        assert found.isolated
        assert (found.first_leak, found.reached, found.limit) == (None, [], 0.0)
        assert found.sequences[found.poisoned].tolist() == [0, 1, 2, 3, 4, 5]
        assert [int((found.sequences == n).sum()) for n in range(6)] == LENGTHS
        reaches = np.nan_to_num(found.influence).max(1) > 0  # [P, T]
        assert (reaches <= (found.sequences[found.poisoned][:, None] == found.sequences[None, :])).all()
        if kind != "llama":
            assert (reaches == (found.sequences[found.poisoned][:, None] == found.sequences[None, :])).all()

    def test_causal_models_move_later_tokens_only(self):
        found = trace(build("llama", "causal LM"), poisoned=[(0, 5)])
        assert moved(found, "model.embed_tokens") == [5]
        assert moved(found, "logits") == moved(found, "model.layers.1") == list(range(5, 16))

    def test_targets_are_columns_of_their_own(self):
        found = trace(build("t5", "conditional generation"), poisoned=[(2, 4)])
        assert found.isolated
        assert len(found.sequences) > found.source
        encoder, decoder = (found.modules.index(f"{side}.block.0") for side in ("encoder", "decoder"))
        assert np.isnan(found.influence[0, encoder, found.source :]).all()
        assert np.isnan(found.influence[0, decoder, : found.source]).all()
        after = [at for at in columns_of(found, 2) if at >= found.source]
        assert moved(found, "logits") == after != []

    def test_a_result_per_sequence_is_of_each_of_its_tokens(self):
        found = trace(build("bert", "sequence classification"), poisoned=[(5, 0)])
        assert found.isolated
        assert moved(found, "logits") == columns_of(found, 5)

    def test_shared_layers_are_told_apart(self):
        found = trace(build("albert"))
        names = [found.modules[at] for at in found.drawn]
        assert "encoder.albert_layer_groups.0" in names
        assert "encoder.albert_layer_groups.0, call 2" in names

    def test_experts_that_a_token_changes_are_no_leak(self):
        torch.manual_seed(0)
        sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
        config = t.MixtralConfig(**sizes, vocab_size=99, num_key_value_heads=2, num_local_experts=4)
        assert trace(t.MixtralForCausalLM(config), poisoned="each").isolated

    @pytest.mark.parametrize("kind", ["qwen3_moe", "aria_text"])
    def test_experts_whose_tokens_are_as_many_as_sequences(self, kind):
        found = trace(test_families.build(tiny(kind), "base"), poisoned="each")
        assert (found.isolated, found.first_leak) == (True, None)

    @pytest.mark.parametrize("kind", ["mamba2", "lfm2"])
    def test_hybrids(self, kind):
        found = trace(test_families.build(tiny(kind), "base"), poisoned="each")
        assert found.isolated
        assert found.first_leak is None


def turning():
    """Return a collator that begins with another sequence at each call."""
    turns = iter(range(1000))

    def collate(features):
        begin = next(turns) % len(features)
        ids = [torch.tensor(one["input_ids"]) for one in (*features[begin:], *features[:begin])]
        padded = torch.nn.utils.rnn.pad_sequence(ids, batch_first=True)
        return {"input_ids": padded, "attention_mask": (padded != 0).long()}

    return collate


class TestPlanted:
    def test_where_it_is(self):
        model = build("bert", num_hidden_layers=3)
        model.encoder.layer[1].register_forward_hook(from_the_left(4e-3))
        found = trace(model, poisoned=[(2, 4)])
        assert not found.isolated
        assert found.first_leak == "encoder.layer.1"
        assert found.reached == [3]
        own, after = columns_of(found, 2), columns_of(found, 3)
        assert moved(found, "encoder.layer.0") == own
        assert moved(found, "encoder.layer.1") == [*own, after[0]]
        assert moved(found, "encoder.layer.2") == [*own, *after]
        at = found.modules.index("encoder.layer.1")
        assert np.flatnonzero(found.leaks[at]).tolist() == [after[0]]
        assert 0 < found.leaks[at].max() < 4e-3
        assert not found.leaks[found.modules.index("encoder.layer.0")].any()

    def test_of_a_small_size_fails_the_audit_too(self):
        model = build("bert")
        model.encoder.layer[1].register_forward_hook(from_the_left(4e-3))
        verdict = nopad.audit(model, gradients=False)
        assert (verdict.isolated, verdict.first_difference) == (False, "encoder.layer.1")
        assert not trace(model).isolated

    def test_the_token_that_leaks_most_is_found(self):
        model = build("llama", "causal LM")
        model.model.layers[0].register_forward_hook(from_the_left(4e-3))
        found = trace(model)
        assert found.positions[found.poisoned].tolist() == [8]  # the last one reaches the next sequence most
        assert (found.first_leak, found.reached[0]) == ("model.layers.0", 3)

    def test_only_sequences_that_leak_are_named(self):
        model = build("bert", num_hidden_layers=1)
        model.encoder.layer[0].register_forward_hook(from_the_left(0.1))
        found = trace(model, poisoned="each")
        assert found.leaking.any((1, 2)).tolist() == [True] * 5 + [False]  # nothing comes after the last one
        assert found.reached == [1, 2, 3, 4, 5]
        assert np.array_equal(found.matrix, np.nanmax(found.influence, 0))

    def test_one_that_no_result_shows(self):
        model = build("bert")
        model.encoder.layer[0].output.dropout = Aside()
        found = trace(model)
        assert (found.isolated, found.first_leak) == (True, "encoder.layer.0.output.dropout.mixed")
        assert found.summary().endswith("but no result shows it")

    def test_foreign_collators(self):
        found = trace(build("bert"), collator=FLATTENING)
        assert (found.first_leak, found.reached) == ("encoder.layer.0.attention.self", [0, 1, 3, 4, 5])
        assert found.how == "as it is, with DataCollatorWithFlattening"
        assert found.first_leak in [found.modules[at] for at in found.drawn]

    def test_a_collator_that_mixes(self):
        found = trace(build("bert", pad_token_id=0), collator=turning())
        assert found.isolated
        assert sorted(found.rows) == sorted(row for row, length in enumerate(LENGTHS) for _ in range(length)) or (
            len(set(found.rows)) == 6
        )

    @pytest.mark.parametrize(("step", "sound"), [(1e-17, True), (1e-9, False)])
    def test_what_the_row_of_a_batch_changes(self, step, sound):
        """On some CPUs, products of matrices round by row, so the same sequence in another row is not bit for bit."""

        def by_row(layer, args, output):
            rows = torch.arange(output.shape[0], dtype=output.dtype).reshape(-1, 1, 1)
            return output + output.abs().max() * step * 37 * rows

        model = build("bert", pad_token_id=0)
        model.encoder.layer[0].register_forward_hook(by_row)
        for found in (trace(model, collator=turning()), nopad.audit(model, collator=turning())):
            assert found.isolated == sound


def one_pair_too_many(query, key, backwards=False):
    """A right collator of one row, but that one token sees one token of another sequence."""

    def collate(features):
        order = list(reversed(features)) if backwards else features
        lens = torch.tensor([len(one["input_ids"]) for one in order])
        number = torch.repeat_interleave(torch.arange(len(lens)), lens)
        mask = number[:, None] == number[None, :]
        if query is not None:
            mask[query, key] = True
        ids = torch.tensor([[token for one in order for token in one["input_ids"]]])
        return {"input_ids": ids, "attention_mask": mask[None, None]}

    return collate


class TestAnyPair:
    """Whichever two tokens of different sequences meet, a trace that leaves its tokens open shows it.

    With one layer, only the very token that is seen moves another sequence.
    """

    SEQUENCE = np.repeat(np.arange(6), LENGTHS)

    @given(st.integers(0, sum(LENGTHS) - 1), st.integers(0, sum(LENGTHS) - 1), st.sampled_from([None, "each"]))
    @settings(max_examples=15)
    def test_leaks(self, query, key, poisoned):
        mine, other = self.SEQUENCE[[query, key]]
        found = trace(small(), collator=one_pair_too_many(query, key), poisoned=poisoned)
        assert found.isolated == (mine == other)
        assert found.reached == ([] if mine == other else [mine])
        if mine != other:
            assert (other, key) in zip(found.sequences[found.poisoned], found.poisoned, strict=True)

    @pytest.mark.parametrize("border", np.cumsum(LENGTHS)[:-1])
    def test_borders_that_are_off_by_one(self, border):
        for query, key in ((border, border - 1), (border - 1, border)):
            found = trace(small(), collator=one_pair_too_many(query, key))
            assert (found.isolated, found.reached) == (False, [self.SEQUENCE[query]])
            assert found.poisoned.tolist() == [key]

    @pytest.mark.parametrize("poisoned", [None, "each"])
    def test_wrong_positions_alone_are_no_leak(self, poisoned):
        """Also where sequences lie in another order: each of them is known by its tokens."""
        model = build("gpt2", "causal LM", eos_token_id=2, bos_token_id=1)  # the shortest sequences hold little else
        backwards = one_pair_too_many(None, None, backwards=True)

        def collate(features):
            batch = backwards(features)
            return {**batch, "attention_mask": batch["attention_mask"].tril(), "use_cache": False}

        assert trace(model, collator=collate, poisoned=poisoned).isolated
        assert not nopad.audit(model, collator=collate, capacity=16, gradients=False).isolated

    def test_a_short_sequence_whose_tokens_all_decide_the_batch(self):
        """No token of such a sequence may be replaced, so a token of another one is, if there is a longer one."""

        def collate(features):
            ids = torch.tensor([token for one in features for token in one["input_ids"]])[None]
            return {"input_ids": ids, "position_ids": ids % 64, "token_type_ids": ids // 64}

        found = trace(small(), collator=collate, capacity=5)  # a sequence of 3 tokens would be the first choice
        assert found.sequences[found.poisoned].tolist() == [0]

        def at_most_three(features):
            ids = collate(features)["input_ids"]  # which an encoder's mask repeats; models without a decoder ignore it
            return {"input_ids": ids, "position_ids": ids % 3, "encoder_attention_mask": ids}

        model = build("bert", num_hidden_layers=1, max_position_embeddings=3)
        for poisoned in (None, "each"):
            with pytest.raises(OptionError, match=r"no token can be replaced: the sequences have up to 3 tokens, and"):
                trace(model, collator=at_most_three, poisoned=poisoned)
        assert not trace(model, collator=at_most_three, poisoned=[(2, 0)]).isolated

    def test_a_collator_that_looks_for_the_end(self):
        """Tokens by which it finds borders are left alone, and the others are poisoned."""
        model = build("gpt2", "causal LM", eos_token_id=2, bos_token_id=1)

        def collate(features):
            ids = torch.tensor([token for one in features for token in one["input_ids"]])
            number = torch.cat([torch.zeros(1, dtype=torch.long), (ids == 2).cumsum(0)[:-1]])
            assert int(number[-1]) == len(features) - 1
            positions = torch.cat([torch.arange(size) for size in number.unique(return_counts=True)[1]])
            mask = (number[:, None] == number[None, :]).tril()
            return {"input_ids": ids[None], "position_ids": positions[None], "attention_mask": mask[None, None]}

        assert nopad.audit(model, collator=collate, capacity=16, gradients=False).isolated
        found = trace(model, collator=collate, poisoned="each")
        assert found.isolated
        assert found.sequences[found.poisoned].tolist() == [0, 2, 3, 4, 5]  # sequence 1 is nothing but its end
        assert trace(model, collator=collate).isolated


@given(st.integers(4, 64), st.integers(0, 5), st.booleans())
def test_sequences_of_an_audit_can_be_told_apart(capacity, seed, bordered):
    tokens = Tokens(40, {"bos": 1, "eos": 2})
    drawn = draw(lengths_for(capacity, capacity), tokens.bordered() if bordered else tokens, seed)
    assert len({tuple(one) for one in drawn}) == 6
    assert sum(len(one) == 1 for one in drawn) == 1


class Aside(torch.nn.Module):
    """A module whose output mixes all tokens, and which gives its input back."""

    def __init__(self):
        super().__init__()
        self.mixed = torch.nn.Identity()

    def forward(self, states):
        self.mixed(states + states.mean(1, keepdim=True))
        return states


@pytest.fixture(scope="module")
def leak():
    return trace(build("bert"), collator=FLATTENING, poisoned=[(2, 4)])


class TestDrawn:
    def test_plain(self, leak):
        lines = leak.draw(80).splitlines()
        assert "LEAKS into sequences 0, 1, 3, 4, 5 from encoder.layer.0.attention.self on" in lines[0]
        rows = {line.split()[0]: line[line.index("│") + 1 : -1].split("│") for line in lines if line.endswith("│")}
        assert rows["sequence"] == ["0" + " " * 15, "1", "2        ", "3   ", "4 ", "5      "]
        assert rows["embeddings"] == ["·" * 16, "·", "····█····", "····", "··", "·······"]
        assert set("".join(rows["encoder.layer.1"][at] for at in (0, 1, 3, 4, 5))) <= set("xX")
        assert set(rows["encoder.layer.1"][2]) <= set("░▒▓█")
        assert "\x1b" not in str(leak)

    def test_colours(self, leak):
        plain, coloured = leak.draw(80), leak.draw(80, colour=True)
        bare = re.sub(r"\x1b\[[\d;]*m", "", coloured)
        assert "\x1b[38;5;208m" in coloured
        assert [len(line) for line in bare.splitlines()[2:8]] == [len(line) for line in plain.splitlines()[2:8]]

    def test_narrow(self, leak):
        picture = [line for line in leak.draw(50).splitlines() if line.endswith("│")]
        assert max(map(len, picture)) <= 50
        assert all(line.count("│") == 7 for line in picture)  # sequences never share a character
        with pytest.raises(OptionError, match=r"width is 20; this trace needs at least \d+ characters"):
            leak.draw(20)
        with pytest.raises(OptionError, match="width is 0; this trace needs at least"):
            leak.draw(0)

    def test_svg(self, leak):
        root = ElementTree.fromstring(leak.to_svg())
        kinds = [
            one.get("class") for one in root.iter() if one.tag.endswith("rect") and one.find("./{*}title") is not None
        ]
        values = leak.influence[0, leak.drawn]
        own = leak.sequences == 2
        assert kinds.count("own") == int((values[:, own] > 0).sum())
        assert kinds.count("leak") == int((values[:, ~own] > 0).sum()) > 100
        assert "prefers-color-scheme: dark" in leak.to_svg()
        assert "href" not in leak.to_svg()

    def test_names_are_escaped(self, leak):
        from dataclasses import replace

        odd = replace(leak, modules=tuple(f"<b>{name}" for name in leak.modules), how='"&"')
        assert "&lt;b&gt;" in odd.to_svg()
        ElementTree.fromstring(odd.to_svg())

    def test_files(self, leak, tmp_path):
        for suffix in ("svg", "txt", "json"):
            leak.save(tmp_path / f"leak.{suffix}")
        found = json.loads((tmp_path / "leak.json").read_text())
        assert (found["isolated"], found["first_leak"]) == (False, leak.first_leak)
        assert np.array(found["influence"]).shape == leak.influence.shape
        assert (tmp_path / "leak.txt").read_text() == str(leak)
        with pytest.raises(OptionError, match=r"leak.gif: a trace is saved as one of .svg, .txt, .json"):
            leak.save(tmp_path / "leak.gif")
        with pytest.raises(OptionError, match="there is no folder"):
            leak.save(tmp_path / "none" / "leak.svg")


class TestRefused:
    @pytest.mark.parametrize(
        ("poisoned", "why"),
        [
            ([(6, 0)], "poisoned names sequence 6; there are 0 to 5"),
            ([(1, 1)], "poisoned names token 1 of sequence 1; it has 0 to 0"),
            ([(-1, 0)], "poisoned names sequence -1"),
            ([], r'poisoned is \[\]; give "each", or pairs'),
            ("all", "poisoned is 'all'; give"),
            (3, "poisoned is 3; give"),
            ([3], r"poisoned is \[3\]; give"),
            ([(0, "1")], r"poisoned is \[\(0, '1'\)\]; give"),
        ],
    )
    def test_tokens_that_are_not_there(self, poisoned, why):
        with pytest.raises(OptionError, match=why):
            trace(build("bert"), poisoned=poisoned)

    def test_models(self):
        with pytest.raises(OptionError, match="layers is 9"):
            trace(build("bert"), layers=9)
        model = build("bert")
        model.register_forward_pre_hook(lambda module, args: 1 / 0)
        with pytest.raises(OptionError, match=r"BertModel cannot be traced: .*ZeroDivisionError"):
            trace(model)

    def test_collators_that_cut(self):
        with pytest.raises(BatchError, match="it was cut, dropped or changed"):
            trace(build("bert"), collator=lambda features: {"input_ids": torch.tensor([features[0]["input_ids"]])})

    def test_what_nopad_refuses(self):
        with pytest.raises(UnsupportedModelError):
            trace(t.XLNetModel(t.XLNetConfig(vocab_size=99, d_model=16, n_layer=1, n_head=2, d_inner=32)))


def test_the_model_is_left_as_it_was():
    model = build("bert", dtype=torch.float32)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.random.get_rng_state()
    trace(model)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not any(module._forward_hooks for module in model.modules())
    assert not nopad.model.is_packed(model)


def test_a_model_that_is_pack_safe_keeps_its_backend():
    model = nopad.packed(build("bert"), backend="mask")
    found = trace(model)
    assert found.isolated
    assert found.how == "nopad, backend 'mask'"
    assert nopad.model.is_packed(model)
    with pytest.raises(OptionError, match="this model is pack-safe by backend 'mask', and 'segments' is asked"):
        trace(model, backend="segments")


@given(st.data())
def test_any_token_moves_its_own_sequence_only(data):
    sequence = data.draw(st.sampled_from(range(6)))
    pair = sequence, data.draw(st.integers(0, LENGTHS[sequence] - 1))
    found = trace(small(), poisoned=[pair], seed=data.draw(st.integers(0, 9)))
    assert np.flatnonzero((np.nan_to_num(found.matrix) > 0).any(0)).tolist() == columns_of(found, sequence)
    assert (found.sequences[found.poisoned[0]], found.positions[found.poisoned[0]]) == pair


@given(st.integers(0, 5), st.sampled_from([1e-9, 4e-3, 1.0]))
def test_a_leak_of_any_size_reaches_the_next_sequence(sequence, share):
    model = copy.deepcopy(small())
    model.encoder.layer[0].register_forward_hook(from_the_left(share))
    found = trace(model, poisoned=[(sequence, LENGTHS[sequence] - 1)])
    assert found.reached == ([sequence + 1] if sequence < 5 else [])
    assert found.isolated == (sequence == 5)


def test_layers_and_seed():
    assert "encoder.layer.1" not in trace(build("bert"), layers=1).modules
    one, other, again = (trace(build("bert"), seed=seed) for seed in (0, 1, 0))
    assert np.array_equal(one.influence, again.influence, equal_nan=True)
    assert not np.array_equal(one.influence, other.influence, equal_nan=True)
