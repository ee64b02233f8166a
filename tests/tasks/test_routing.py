"""The loss that balances experts in a step: averaged over its batches, by their shares of the denominator."""

from __future__ import annotations

from copy import deepcopy

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
import transformers
from tests.model.kinds import AllDouble
from tests.tasks.tiny import llama, tokenizer

import nopad
from nopad.errors import OptionError
from nopad.tasks import CausalLM, OfPreferences, OfTokens
from nopad.tasks.fit import check_outputs
from nopad.tasks.routing import auxiliary, coefficient_of, learned_share

SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2}
EXPERTS = {"intermediate_size": 16, "num_local_experts": 4, "num_experts_per_tok": 2, "router_aux_loss_coef": 0.5}
SEQUENCES = [[5, 6, 7, 8, 9], [7, 3], [4, 8, 8, 1, 2, 3, 9, 9, 4], [3, 1, 2]]


def mixture(**changed):
    torch.manual_seed(0)
    config = transformers.MixtralConfig(vocab_size=40, output_router_logits=True, **SIZES | EXPERTS | changed)
    how = {"experts_implementation": "eager"}
    return transformers.MixtralForCausalLM._from_config(config, **how).double()


def batch_of(sequences, form=None):
    made = {"form": nopad.Rows(10, rows=3)} if form is None else {"form": form}
    features = [{"input_ids": one, "labels": one} for one in sequences]
    return nopad.PackedBatch.from_features(features, causal=True, **made)


def alone(model, sequences):
    """By hand, from the stock model on a padded batch: the sum of losses of tokens, their number, and `aux_loss`."""
    width = max(len(one) for one in sequences)
    ids = torch.tensor([one + [0] * (width - len(one)) for one in sequences])
    real = torch.tensor([[1] * len(one) + [0] * (width - len(one)) for one in sequences])
    found = model(input_ids=ids, attention_mask=real)
    each = torch.nn.functional.cross_entropy(found.logits[:, :-1].mT, ids[:, 1:], reduction="none")
    return (each * real[:, 1:]).sum(), int(real[:, 1:].sum()), found.aux_loss


def slopes(model, loss):
    model.zero_grad()
    loss.backward()
    return torch.cat([one.grad.reshape(-1) for one in model.parameters()])


@pytest.mark.parametrize("form", [nopad.Flat(), nopad.Rows(10, rows=3)])
def test_one_batch_is_the_padded_batchs_loss(form):
    stock = mixture()
    model = nopad.packed(deepcopy(stock))
    with AllDouble():
        total, count, balance = alone(stock, SEQUENCES)
        found, _ = OfTokens(causal=True).step(model, batch_of(SEQUENCES, form))
    wanted = total / count + 0.5 * balance
    assert abs((found - wanted).item()) <= 1e-12
    assert float((slopes(model, found) - slopes(stock, wanted)).abs().max()) <= 1e-12


def test_several_batches_are_averaged():
    stock = mixture()
    model, objective = nopad.packed(deepcopy(stock)), OfTokens(causal=True)
    parts = [SEQUENCES[:1], SEQUENCES[1:]]
    batches = [batch_of(part) for part in parts]
    whole = sum(objective.count(batch) for batch in batches)
    with AllDouble():
        found = sum(objective.step(model, batch, whole)[0] for batch in batches)
        each = [alone(stock, part) for part in parts]
    tokens = sum(count for _, count, _ in each)
    assert tokens == whole.item() == 15
    wanted = sum(total for total, _, _ in each) / tokens
    wanted = wanted + 0.5 * sum(count / tokens * balance for _, count, balance in each)
    assert abs((found - wanted).item()) <= 1e-12
    assert float((slopes(model, found) - slopes(stock, wanted)).abs().max()) <= 1e-12
    stand_in = batches[0].as_stand_in()
    assert objective.step(model, stand_in, whole)[0].item() == 0


def test_an_evaluation_leaves_it_out():
    stock = mixture()
    model = nopad.packed(deepcopy(stock))
    with torch.no_grad():
        total, count, _ = alone(stock, SEQUENCES)
        found, outputs = OfTokens(causal=True).step(model, batch_of(SEQUENCES))
    assert outputs.aux_loss.item() > 0
    assert abs((found - total / count).item()) <= 1e-12


def test_the_task_of_a_causal_model_learns_it():
    task = CausalLM(tokenizer())
    batch = next(iter(task.loader([{"text": "is it why not"}, {"text": "yes"}], 32, rows=1)))
    config = transformers.MixtralConfig(vocab_size=len(tokenizer()), output_router_logits=True, **SIZES | EXPERTS)
    model = nopad.packed(transformers.MixtralForCausalLM(config))
    found, outputs = task.objective.step(model, batch)
    model.config.output_router_logits = False
    bare, without = task.objective.step(model, batch)
    assert without.get("aux_loss") is None
    assert (found - bare).item() == pytest.approx(0.5 * outputs.aux_loss.item(), rel=1e-5)


def test_how_much_of_it_is_learned():
    assert coefficient_of(transformers.JetMoeConfig(aux_loss_coef=0.125)) == 0.125
    assert coefficient_of(transformers.LlamaConfig()) is None
    assert learned_share(transformers.MixtralConfig(router_aux_loss_coef=0.25)) is None
    assert learned_share(transformers.MixtralConfig(router_aux_loss_coef=0.25, output_router_logits=True)) == 0.25
    model, outputs = llama(CausalLM(tokenizer())), {"aux_loss": torch.ones(())}
    with pytest.raises(
        OptionError, match=r"aux_loss, and its configuration .* set model\.config\.router_aux_loss_coef"
    ):
        auxiliary(model, outputs)
    assert auxiliary(model, {"logits": torch.ones(())}) is None


def test_another_loss_that_would_go_missing_is_refused_where_something_is_learned():
    outputs = {"logits": torch.zeros(1, 3, 5), "aux_loss": torch.zeros(()), "z_loss": torch.zeros(())}
    with pytest.raises(OptionError, match="a loss of its own, aux_loss, z_loss, which is no part of what is learned"):
        check_outputs(OfTokens(causal=True), outputs)
    with torch.no_grad():
        check_outputs(OfTokens(causal=True), outputs)
    del outputs["z_loss"]
    check_outputs(OfTokens(causal=True), outputs)


def test_pairs_learn_it_by_their_share_of_pairs():
    objective = OfPreferences()
    columns = {"pair": [0, 0, 1, 1], "chosen": [1, 0, 1, 0], "reference_logp": [0.0, 0.0, 0.0, 0.0]}

    def pairs(numbers):
        rows = [{"input_ids": SEQUENCES[n], "labels": SEQUENCES[n]} for n in numbers]
        rows = [one | {name: columns[name][n] for name in columns} for one, n in zip(rows, numbers, strict=True)]
        return nopad.PackedBatch.from_features(rows, causal=True)

    model = nopad.packed(mixture())
    batches = [pairs([0, 1]), pairs([2, 3])]
    for batch in batches:
        found, outputs = objective.step(model, batch, torch.tensor(2.0, dtype=torch.double))
        plain = objective.loss(outputs, batch, torch.tensor(2.0, dtype=torch.double))
        assert (found - plain).item() == pytest.approx(0.5 * outputs.aux_loss.item() / 2, rel=1e-9)
