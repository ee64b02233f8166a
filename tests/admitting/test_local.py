"""Code that mixes tokens only sometimes, or does not always do the same: what is admitted gives what alone gives."""

from __future__ import annotations

import copy
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import BertModel
from transformers.modeling_outputs import SequenceClassifierOutput

sys.path.insert(0, str(Path(__file__).parent))

import own

import nopad
from nopad.admitting import proof_of
from nopad.admitting.local import Run, crossing, varying
from nopad.errors import UnsupportedModelError
from nopad.model.safety import state_of


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def mean(x):
    return x.mean(1, keepdim=True)


class Extra(nn.Module):
    """What is put between BERT and the output of a tagger."""

    def forward(self, x, ids):
        return x


class Longer(Extra):
    """Mixes in rows of more than 450 tokens."""

    def forward(self, x, ids):
        return x + mean(x) if x.shape[1] > 450 else x


class MuchLonger(Extra):
    def forward(self, x, ids):
        return x + mean(x) if x.shape[1] > 2000 else x


class ManyRows(Extra):
    """Mixes rows, if there are more than 8."""

    def forward(self, x, ids):
        return x + x.mean((0, 1), keepdim=True) if x.shape[0] > 8 else x


class OneToken(Extra):
    """Mixes where a row has the token 250."""

    def forward(self, x, ids):
        return torch.where((ids == 250).any(1)[:, None, None], x + mean(x), x)


class OneTokenIf(Extra):
    def forward(self, x, ids):
        return x + mean(x) if (ids == 250).any() else x


class OneTokenList(Extra):
    def forward(self, x, ids):
        return x + mean(x) if 250 in ids.flatten().tolist() else x


class Capacity(Extra):
    """Experts that take at most 3,000 tokens of a batch."""

    def forward(self, x, ids):
        norms = x.norm(dim=-1).flatten()
        if norms.numel() <= 3000:
            return 2 * x
        chosen = torch.zeros_like(norms).scatter(0, norms.topk(3000)[1], 1.0)
        return x + x * chosen.view(x.shape[:2])[..., None]


class Training(Extra):
    def forward(self, x, ids):
        return x + 1e-7 * mean(x) if self.training else x


class Place(Extra):
    """Counts along the row."""

    def forward(self, x, ids):
        return x + 0.01 * torch.arange(x.shape[1], dtype=x.dtype)[None, :, None]


class Width(Extra):
    """Mixes in models of at least 40 numbers a token."""

    def forward(self, x, ids):
        return x + mean(x) if x.shape[-1] >= 40 else x


class Gate(Extra):
    """Mixes where a buffer says so."""

    def __init__(self):
        super().__init__()
        self.register_buffer("gate", torch.zeros(1))

    def forward(self, x, ids):
        return x + mean(x) if float(self.gate) else x


class InPlace(Extra):
    def forward(self, x, ids):
        x = x.clone()
        x[:, 1:, :4] = torch.where(ids[:, :1, None] == 250, x[:, :-1, :4], x[:, 1:, :4])
        return x


class Fifth(Extra):
    """Mixes in the fifth of its layers."""

    def __init__(self, at=0):
        super().__init__()
        self.at = at

    def forward(self, x, ids):
        return x + mean(x) if self.at == 4 else x


class Separated(Extra):
    """Adds how many separators there were before; the ids of a proof hold none, so it counts zeros."""

    def forward(self, x, ids):
        return x + (ids == 250).long().cumsum(1)[..., None]


class Separator(Extra):
    def forward(self, x, ids):
        return x + (ids == 250).long().roll(1, 1)[..., None]


class Highest(Extra):
    """Marks the tokens behind one of a high id; the ids of a proof ascend."""

    def forward(self, x, ids):
        return x + (ids.cummax(1).values >= 250)[..., None].to(x.dtype)


class Counted(Extra):
    """Counts the tokens 250 without reading a number."""

    def forward(self, x, ids):
        return x * (1 + ids[ids == 250].numel())


class Aligned(Extra):
    """Mixes in batches of whole blocks only."""

    def forward(self, x, ids):
        return x + x.mean((0, 1), keepdim=True) if x.shape[:2].numel() % 128 == 0 else x


class Seen(Extra):
    """Writes which kinds of tokens the batch has into a table that all rows share."""

    def forward(self, x, ids):
        table = torch.zeros(2, dtype=x.dtype)
        table[(ids == 250).long().flatten()] = 1
        return x * (1 + table[1])


@torch.library.custom_op("nopad_tests::new_states", mutates_args=())
def new_states(x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    return x * 2 if bool((ids == 250).any()) else x.clone()


class Operator(Extra):
    """Decides in an operator of its own."""

    def forward(self, x, ids):
        return x + new_states(x.detach(), ids)


KINDS = [Longer, MuchLonger, ManyRows, OneToken, OneTokenIf, OneTokenList, Capacity, Training, Place, Width, InPlace]
KINDS += [Separated, Separator, Highest, Counted, Aligned, Seen, Operator]


class Tagger(own.Around):
    def __init__(self, config):
        super().__init__(config)
        kind = globals()[config.extra]
        self.layers = nn.ModuleList([Fifth(at) for at in range(6)] if kind is Fifth else [kind()])

    def forward(self, input_ids, attention_mask=None, position_ids=None):
        states = self.bert(input_ids, attention_mask=attention_mask, position_ids=position_ids).last_hidden_state
        for layer in self.layers:
            states = layer(states, input_ids)
        return own.MaskedLMOutput(logits=self.out(states))


def config(kind, **more):
    found = own.bert_config(**more)
    found.extra = kind.__name__
    return found


def apart(stock, sequences, training=False):
    """The largest difference between packs and the stock model alone."""
    torch.manual_seed(0)
    stock = stock.double().train(training)
    for module in stock.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    model, worst = nopad.packed(copy.deepcopy(stock)), 0.0
    with torch.no_grad():
        for form in (nopad.Flat(), nopad.Rows(320)):
            batch = nopad.PackedBatch.from_sequences(sequences, form=form)
            for one, sequence in zip(batch.unpack_tokens(model(**batch).logits), sequences, strict=True):
                worst = max(worst, float((one - stock(input_ids=sequence[None]).logits[0]).abs().max()))
    return worst, model


@pytest.mark.parametrize("kind", KINDS)
def test_what_mixes_sometimes_never_does_across_sequences(kind):
    size = {"hidden_size": 48} if kind is Width else {}
    lengths = (300,) * 12 if kind is Capacity else (30, 300, 1, 300, *(30,) * 9, 200)
    sequences = [torch.randint(0, 200, (n,)) for n in lengths]
    sequences[1][5] = 250
    sequences[5][-1] = 250
    if kind is Aligned:
        sequences += [torch.randint(0, 200, (-sum(map(len, sequences)) % 128,))]
    if kind is MuchLonger:
        sequences += [torch.randint(0, 200, (200,)) for _ in range(8)]
    worst, model = apart(Tagger(config(kind, **size)), sequences, kind is Training)
    assert worst <= 1e-12
    assert state_of(model).family.mixers == (kind.__name__,)


def test_every_layer_of_ones_own_is_looked_at():
    sequences = [torch.randint(0, 200, (n,)) for n in (30, 4, 60)]
    worst, model = apart(Tagger(config(Fifth, num_hidden_layers=6)), sequences)
    assert worst <= 1e-12
    assert state_of(model).family.mixers == ("Fifth",)


def test_a_value_that_decides_runs_each_sequence_alone():
    stock = Tagger(config(Gate))
    stock.layers[0].gate.fill_(1)
    worst, model = apart(stock, [torch.randint(0, 200, (n,)) for n in (30, 30, 60)])
    assert worst <= 1e-12
    assert state_of(model).family.alone == ("Gate",)


class Mean(Extra):
    def forward(self, x, ids):
        return x + 0.1 * mean(x)


def test_modules_and_settings_that_came_after_the_model_was_built():
    sequences = [torch.randint(0, 200, (n,)) for n in (30, 4, 60)]
    stock = Tagger(config(Extra))
    stock.layers[0] = Mean()
    assert apart(stock, sequences)[0] <= 1e-12
    stock = Tagger(config(Fifth, num_hidden_layers=6))
    stock.layers[0].at = 4  # two layers mix
    assert apart(stock, sequences)[0] <= 1e-12


class Short(Extra):
    """Gives each token the mean up to it, by a mask for 256 positions."""

    def __init__(self):
        super().__init__()
        mask = torch.ones(256, 256).tril()
        self.register_buffer("mask", mask / mask.sum(1, keepdim=True), persistent=False)

    def forward(self, x, ids):
        length = x.shape[1]
        return x + self.mask[:length, :length].to(x.dtype) @ x


def test_a_mixing_module_that_takes_no_longer_rows():
    sequences = [torch.randint(0, 200, (n,)) for n in (30, 4, 250)]
    worst, model = apart(Tagger(config(Short, max_position_embeddings=256)), sequences)
    assert worst <= 1e-12
    assert state_of(model).family.mixers == ("Short",)


class Output(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, states, given):
        return self.inner(states, given) + 0.1 * mean(given)


def test_a_model_of_the_tables_with_a_module_of_ones_own_is_proven():
    stock = BertModel(own.bert_config()).double().eval()
    stock.encoder.layer[1].output = Output(stock.encoder.layer[1].output)
    model = nopad.packed(copy.deepcopy(stock))
    sequences = [torch.randint(0, 200, (n,)) for n in (30, 4, 60)]
    batch = nopad.PackedBatch.from_sequences(sequences)
    with torch.no_grad():
        found = batch.unpack_tokens(model(**batch).last_hidden_state)
        for one, sequence in zip(found, sequences, strict=True):
            assert float((one - stock(input_ids=sequence[None]).last_hidden_state[0]).abs().max()) <= 1e-12
    assert state_of(model).family.mixers == ("Output",)


def test_a_head_that_is_named_is_proven_too():
    stock = Tagger(config(Mean)).double().eval()
    model = nopad.packed(copy.deepcopy(stock), head="tokens")
    batch = nopad.PackedBatch.from_sequences([[5, 6, 7], [8, 9]])
    alone = stock(input_ids=torch.tensor([[8, 9]])).logits[0]
    assert float((batch.unpack_tokens(model(**batch).logits)[1] - alone).detach().abs().max()) <= 1e-12


class Counting(Extra):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x, ids):
        self.calls += 1
        return x + mean(x) if self.calls > 10_000 else x


class Private(Extra):
    def __init__(self):
        super().__init__()
        self._calls = 0

    def forward(self, x, ids):
        self._calls += 1
        return x + mean(x) if self._calls > 10_000 else x


class Running(Extra):
    def __init__(self):
        super().__init__()
        self.register_buffer("average", torch.zeros(32))

    def forward(self, x, ids):
        if self.training:
            self.average = 0.9 * self.average + 0.1 * x.detach().mean((0, 1))
        return x


class Growing(Extra):
    """Has one attribute more after every call."""

    def forward(self, x, ids):
        setattr(self, f"kept{sum(name.startswith('kept') for name in vars(self))}", 0)
        return x + mean(x) if hasattr(self, "kept9000") else x


SEEN = []


class Global(Extra):
    def forward(self, x, ids):
        SEEN.append(len(SEEN))
        return x


KEPT = {
    "Counting": r"layers\.0\.calls of Tagger changes with every call, so what a sequence gets may depend on what ran",
    "Private": r"layers\.0\._calls of Tagger changes with every call, so",
    "Growing": r"layers\.0\.kept2 of Tagger changes with every call, so",
    "Running": r"layers\.0\.average of Tagger changes with every call, in training, so",
    "Global": r"what the code of Global reaches of Tagger changes with every call",
}


@pytest.mark.parametrize("kind", KEPT)
def test_what_is_kept_from_call_to_call_is_refused(kind):
    with pytest.raises(UnsupportedModelError, match=KEPT[kind]):
        nopad.packed(Tagger(config(globals()[kind])))


class Table(Extra):
    """Keeps a table for each length: it depends on nothing else."""

    def __init__(self):
        super().__init__()
        self.tables = {}

    def forward(self, x, ids):
        length = x.shape[1]
        if length not in self.tables:
            self.tables[length] = torch.linspace(0, 1, length, dtype=x.dtype)[None, :, None]
        return x * self.tables[length].to(x.dtype)


def test_tables_that_are_made_once_may_be_kept():
    worst, model = apart(Tagger(config(Table)), [torch.randint(0, 200, (n,)) for n in (30, 4, 60)])
    assert worst <= 1e-12
    assert state_of(model).family.mixers == ("Table",)


class Deciding(own.Around):
    """Its own forward method decides."""

    def forward(self, input_ids, attention_mask=None, position_ids=None):
        states = self.bert(input_ids, attention_mask=attention_mask, position_ids=position_ids).last_hidden_state
        if self.config.extra == "token" and bool((input_ids == 250).any()):
            states = states + mean(states)
        if self.config.extra == "length" and states.shape[1] > 700:
            states = states + mean(states)
        if self.config.extra == "gate":
            states = torch.where((input_ids == 250).any(1)[:, None, None], states + mean(states), states)
        return own.MaskedLMOutput(logits=self.out(states))


DECIDES = {
    "token": "what the forward method of Deciding computes is not always the same: it reads numbers out of tensors",
    "length": "what the forward method of Deciding computes is not always the same: it calls other functions on 1 x",
    "gate": "the forward method of Deciding moves information between tokens by itself",
}


@pytest.mark.parametrize("extra", DECIDES)
def test_a_model_whose_own_forward_method_decides_is_refused(extra):
    given = own.bert_config()
    given.extra = extra
    with pytest.raises(UnsupportedModelError, match=DECIDES[extra]):
        nopad.packed(Deciding(given))


class LastOrMean(own.Around):
    """Reads the last token, and of long rows the mean."""

    limit = 10**9  # more than a proof tries

    def forward(self, input_ids, attention_mask=None, position_ids=None):
        states = self.bert(input_ids, attention_mask=attention_mask, position_ids=position_ids).last_hidden_state
        pooled = states[:, -1] if states.shape[1] < self.limit else states.mean(1)
        return SequenceClassifierOutput(logits=self.out(pooled))


def test_each_call_checks_how_a_row_was_pooled():
    model = nopad.packed(LastOrMean(own.bert_config()).eval())
    batch = nopad.PackedBatch.from_sequences([[5, 6, 7], [8, 9]])
    assert model(**batch).logits.shape == (2, 3)
    LastOrMean.limit, state_of(model).proven = 4, None  # as if nobody saw that it changes
    try:
        with pytest.raises(UnsupportedModelError, match=r"out \(Linear\) of this model is not given the last token's"):
            model(**batch)
    finally:
        LastOrMean.limit = 10**9


def test_large_models_whose_modules_came_later_are_refused(monkeypatch):
    from nopad.admitting import small

    monkeypatch.setattr(small, "MOST_PARAMETERS", 1000)
    stock = Tagger(config(Extra))
    stock.layers[0] = Mean()
    with pytest.raises(
        UnsupportedModelError, match=r"layers\.0 was made a Mean after the model was built, and a copy would not"
    ):
        nopad.packed(stock)


def test_a_model_that_cannot_be_copied():
    stock = Tagger(config(Extra))
    stock.layers[0].stream = open(__file__)  # noqa: SIM115
    with pytest.raises(UnsupportedModelError, match=r"Tagger cannot be copied \(TypeError: cannot pickle"):
        nopad.packed(stock)
    stock.layers[0].stream.close()


class Wrapper(nn.Module):
    """No model of transformers, but around one."""

    def __init__(self):
        super().__init__()
        self.base = BertModel(own.bert_config())
        self.config = self.base.config

    def forward(self, input_ids, attention_mask=None, position_ids=None):
        states = self.base(input_ids, attention_mask=attention_mask, position_ids=position_ids).last_hidden_state
        return states + mean(states)


@pytest.mark.parametrize("head", [None, "tokens"])
def test_wrappers_that_mix_tokens_are_refused(head):
    with pytest.raises(UnsupportedModelError, match=r"the forward method of Wrapper moves information between tokens"):
        nopad.packed(Wrapper(), head=head)
    with pytest.raises(UnsupportedModelError, match=r"Wrapper.* nopad\.packed\(model\.base\), if all that is computed"):
        nopad.packed(Wrapper(), head=head, prove="never")


def looked_at(function, length=11):
    class Given(nn.Module):
        def forward(self, x):
            return function(x)

    given = {"x": torch.randn(1, length, 8, dtype=torch.float64)}
    run = Run(Given(), given, {}, length, 1e-9)
    crosses, reads = crossing(run, list(range(length)))
    return crosses, reads, bool(varying(run, False)[0])


def _shifted(x):
    out = x.clone()
    out[:, 1:] = x[:, :-1]
    return out


def _norm(x):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


LOCAL = {
    "gelu": nn.functional.gelu,
    "norm": _norm,
    "in place": lambda x: x.clone().mul_(2).add_(x),
    "heads": lambda x: x.view(1, -1, 2, 4).transpose(1, 2).softmax(-1).transpose(1, 2).reshape(x.shape),
    "top of a token": lambda x: x.masked_fill(x < x.topk(3, -1)[0][..., -1:], 0),
    "flat": lambda x: (x.reshape(-1, 8) @ torch.eye(8, dtype=x.dtype)).view(x.shape),
    "masked": lambda x: torch.where(x > 0, x, torch.zeros_like(x)),
    "integers": lambda x: x + ((x > 0).long() * 7 + 3)[..., :1] // 2 % 4,
    "looked up": lambda x: nn.functional.embedding((x > 0).long().sum(-1), torch.eye(9, dtype=x.dtype))[..., :8],
    "gathered": lambda x: x.gather(2, x.topk(8, dim=2).indices),
    "set by a mask": lambda x: x.clone().masked_fill_(x > 0, 0),
    "halves": lambda x: torch.cat([x[..., :4].sigmoid() * x[..., 4:], x[..., 4:]], -1),
}
MIXED = {
    "mean times 0": lambda x: x + 0 * mean(x),
    "shut gate": lambda x: torch.where(x.abs().amax((1, 2), keepdim=True) > 1e9, x + mean(x), x),
    "shift": _shifted,
    "cumulative": lambda x: x + 1e-30 * x.cumsum(1),
    "sorted": lambda x: x.sort(1)[0],
    "attention": lambda x: (x @ x.transpose(1, 2)).softmax(-1) @ x,
    "flip": lambda x: x.flip(1),
    "written": lambda x: x.clone().index_fill_(2, torch.tensor([0]), 0) + x.max(),
    "zeros shifted": lambda x: x + (x > 1e9).long().roll(1, 1),
    "zeros summed": lambda x: x + (x > 1e9).int().cumsum(1),
    "highest so far": lambda x: x + (x > -1e9).long().mul(torch.arange(x.shape[1])[:, None]).cummax(1).values,
    "constant of a row": lambda x: x * 0 + x.sum(),
}


@pytest.mark.parametrize("name", LOCAL)
def test_operations_that_keep_tokens_apart(name):
    assert looked_at(LOCAL[name]) == (False, False, False)


@pytest.mark.parametrize("name", MIXED)
def test_operations_that_mix_tokens(name):
    assert looked_at(MIXED[name])[0]


def _reads(how):
    return lambda x: x * 2 if how(x) else x


def _counted(x):
    return x * (1 + x[x > 1e9].numel())


READS = {
    "masked": _counted,
    "nonzero": lambda x: x * (1 + len((x > 1e9).nonzero())),
    "unique": lambda x: x * len(x.unique()),
    "item": _reads(lambda x: x.max().item() > 1e9),
    "bool": _reads(lambda x: (x > 1e9).any()),
    "list": _reads(lambda x: max(x.flatten().tolist()) > 1e9),
    "numpy": _reads(lambda x: x.numpy().max() > 1e9),
    "equal": _reads(lambda x: torch.equal(x, x + 1)),
}


@pytest.mark.parametrize("name", READS)
def test_numbers_that_are_read_out_of_tensors(name):
    assert looked_at(READS[name])[1]


def test_lengths_that_are_handed_on():
    class Given(nn.Module):
        def forward(self, x, length):
            return x.view(-1, length, 2, 4).flatten(2)

    given = {"x": torch.randn(1, 11, 8, dtype=torch.float64), "length": 11}
    assert varying(Run(Given(), given, {}, 11, 1e-9), False) == ("", False)


def test_sizes_by_which_code_decides():
    assert not looked_at(lambda x: x * len(x))[0]
    for function in (
        lambda x: x * len(x),
        lambda x: x + x.shape[1] if x.shape[1] > 10_000 else x,
        lambda x: x * 2 if x.shape[0] > 250 else x,
        lambda x: x + torch.arange(x.shape[1])[None, :, None],
    ):
        assert looked_at(function)[2]


def test_a_proof_says_what_it_is_of():
    found = proof_of(Tagger(config(Mean)))
    assert found.admitted
    assert found.family.mixers == ("Mean",)
