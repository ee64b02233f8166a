"""Models that no table knows: admitted by a proof, with the results of each sequence alone; or refused by name."""

from __future__ import annotations

import copy
import sys
from pathlib import Path

import pytest
import torch
import transformers as t

sys.path.insert(0, str(Path(__file__).parent))

import own

import nopad
from nopad.admitting import front, proof_of
from nopad.admitting.bad import check_rows_apart
from nopad.admitting.proof import prove
from nopad.errors import OptionError, UnsupportedModelError
from nopad.model import families, is_packed
from nopad.model.safety import state_of

LENGTHS = (9, 1, 40, 17)
FORMS = {"flat": nopad.Flat(), "rows": nopad.Rows(44), "end to end": nopad.Rows(41, end_to_end=True)}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def drawn(kind, config):
    torch.manual_seed(3)
    made = kind(config).double().eval()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    return made


def held_against_alone(kind, config, forms=FORMS):
    """Outputs and gradients of a model on packs against the stock model, sequence by sequence."""
    stock = drawn(kind, config)
    sequences = [torch.randint(0, config.vocab_size, (n,)) for n in LENGTHS]
    wanted = [next(iter(stock(input_ids=one[None]).values()))[0] for one in sequences]
    weights = [torch.randn_like(one) for one in wanted]
    slopes = torch.autograd.grad(
        sum((a * b).sum() for a, b in zip(wanted, weights, strict=True)), list(stock.parameters()), allow_unused=True
    )
    model = nopad.packed(copy.deepcopy(stock))
    for form in forms.values():
        batch = nopad.PackedBatch.from_sequences(sequences, form=form)
        made = next(iter(model(**batch).values()))
        split = batch.unpack_tokens if tuple(made.shape[:2]) == batch.layout.shape else batch.unpack_sequences
        found = split(made)
        for one, two in zip(found, wanted, strict=True):
            assert float((one - two).detach().abs().max()) <= 1e-12 * float(two.detach().abs().max())
        total = sum((a * b).sum() for a, b in zip(found, weights, strict=True))
        again = torch.autograd.grad(total, list(model.parameters()), allow_unused=True)
        for one, two in zip(again, slopes, strict=True):
            assert (one is None) == (two is None)
            largest = max(float(slope.abs().max()) for slope in slopes if slope is not None)
            assert one is None or float((one - two).abs().max()) <= 1e-12 * largest
    return model


def test_registered_attention_of_an_unknown_class():
    model = held_against_alone(own.OwnDecoder, own.OwnConfig(num_hidden_layers=5))
    state = state_of(model)
    assert (state.family.route, state.family.mixers, state.family.causal) == ("interface", (), True)
    assert state.head.name == "causal"  # its loss shifts labels


def test_attention_by_hand_and_positions_along_the_row():
    model = held_against_alone(own.OwnEncoder, own.OwnConfig())
    family = state_of(model).family
    assert family.mixers == ("ByHand",)
    assert family.tables == (("places", 0),)
    assert not family.causal
    long = [torch.arange(400), torch.arange(300)]  # rows wider than the table of positions
    batch = nopad.PackedBatch.from_sequences(long)
    states = batch.unpack_tokens(model(**batch).last_hidden_state)
    alone = model(input_ids=long[1][None]).last_hidden_state[0]
    assert float((states[1] - alone).detach().abs().max()) <= 1e-12


def test_positions_along_the_row_are_not_compiled():
    model = nopad.packed(drawn(own.OwnEncoder, own.OwnConfig()))
    model.layers[0].compile(backend="eager")
    with pytest.raises(UnsupportedModelError, match=r"OwnEncoder counts positions along the row\. nopad puts each"):
        model(**nopad.PackedBatch.from_sequences([[5, 6], [7]]))


def test_a_leak_in_a_module_of_its_own_is_run_sequence_by_sequence():
    model = held_against_alone(own.OwnEncoder, own.OwnConfig(extra="row"))
    assert state_of(model).family.mixers == ("ByHand", "RowMean")


@pytest.mark.parametrize(
    ("kind", "head", "mixers"),
    [
        (own.Tagger, "tokens", ()),
        (own.ConvolvedTagger, "tokens", ("Convolved",)),
        (own.FirstClassifier, "classification", ()),
        (own.MeanClassifier, "classification", ()),
    ],
)
def test_modules_of_ones_own_around_a_base(kind, head, mixers):
    forms = FORMS if head == "tokens" else {"flat": FORMS["flat"]}
    model = held_against_alone(kind, own.bert_config(), forms)
    assert (state_of(model).head.name, state_of(model).family.mixers) == (head, mixers)


REFUSED = {
    "batch": r"the result of layers.0.extra \(BatchMean\) of OwnEncoder for a row changes if the batch has another "
    "row, in training: it takes statistics over the batch",
    "own forward": "the forward method of OwnEncoder moves information between tokens by itself",
    "sign": r"layers.0.extra \(Sign\) of OwnEncoder .*for a row changes if the batch has another row",
    "noise": r"layers.0.extra \(Noise\) of OwnEncoder gives one sequence two results in evaluation mode: it draws",
    "flat": r"the result of layers.0.extra \(Flat\) of OwnEncoder for a row changes if the batch has another row",
    "hidden loss": r"layers\.\d\.extra\.gate\.bias of OwnEncoder gets a gradient in training even if nothing is",
    "counts": r"layers\.0\.extra\.tokens of OwnEncoder changes with every call, in training",
    "counts calls": r"layers\.0\.extra\.calls of OwnEncoder changes with every call",
    "limited": r"layers\.0\.extra \(Limited\) of OwnEncoder has experts of limited capacity \(expert_capacity = 5000\)",
}


@pytest.mark.parametrize("extra", REFUSED)
def test_leaks_that_nothing_stops_are_refused_by_name(extra):
    model = own.OwnEncoder(own.OwnConfig(extra=extra))
    with pytest.raises(UnsupportedModelError, match=REFUSED[extra]):
        nopad.packed(model)
    assert not is_packed(model)


def test_a_model_that_is_random_in_training_outside_of_its_modules_is_compared_in_evaluation_only():
    class Noisy(t.BertModel):
        def forward(self, *args, **kwargs):
            found = super().forward(*args, **kwargs)
            if self.training:
                found.last_hidden_state = found.last_hidden_state + torch.randn_like(found.last_hidden_state)
            return found

    check_rows_apart(Noisy(own.bert_config()).double(), close=1e-6)


def test_a_capacity_of_experts_in_the_configuration():
    config = own.OwnConfig(capacity_factor=1.25)
    with pytest.raises(UnsupportedModelError, match=r"the configuration of OwnEncoder has experts of limited capacity"):
        nopad.packed(own.OwnEncoder(config))
    config.drop_tokens = False
    nopad.packed(own.OwnEncoder(config))


def test_heads_that_pool_in_a_way_of_their_own():
    with pytest.raises(UnsupportedModelError, match="MaxClassifier has no part that nopad could hand each sequence's"):
        nopad.packed(own.MaxClassifier(own.bert_config()))
    with pytest.raises(
        UnsupportedModelError, match="norm of NormedTagger is a BatchNorm1d, which takes its statistics"
    ):
        nopad.packed(own.NormedTagger(own.bert_config()))


def test_a_small_leak_does_not_pass_the_audit(monkeypatch):
    """With every check before the audit out of the way, the audit itself sees 4e-3."""
    from nopad.admitting import deriving, judging, proof

    monkeypatch.setattr(judging.Judge, "differs", lambda self, line, head: "")
    monkeypatch.setattr(proof, "check_rows_apart", lambda model, close: None)
    real = deriving.probe

    def blind(*given):
        found = real(*given)
        found.unsplit = None
        return found

    monkeypatch.setattr(deriving, "probe", blind)
    found = prove(own.OwnEncoder(own.OwnConfig(extra="own forward")))
    assert not found.admitted
    assert "its small copy does not pass the audit: float64 outputs, flat" in found.reason


@pytest.mark.filterwarnings("ignore")  # torch.ao is to move elsewhere
def test_parts_and_weights_that_no_copy_would_have():
    model = own.OwnEncoder(own.OwnConfig())
    model.config.quantization_config = {"bits": 4}
    with pytest.raises(
        UnsupportedModelError, match=r"weights of this OwnEncoder are quantised \(quantization_config\)"
    ):
        nopad.packed(model)
    model = own.OwnEncoder(own.OwnConfig())
    model.layers[0].mlp[0].weight = torch.nn.Parameter(model.layers[0].mlp[0].weight.to(torch.int8), False)
    with pytest.raises(UnsupportedModelError, match=r"weights of layers.0.mlp.0 \(Linear\) are quantised"):
        nopad.packed(model)
    model = torch.ao.quantization.quantize_dynamic(own.OwnEncoder(own.OwnConfig()), {torch.nn.Linear})
    with pytest.raises(UnsupportedModelError, match=r"weights of layers.0.attention.qkv \(Linear\) are quantised"):
        nopad.packed(model)
    model = own.OwnEncoder(own.OwnConfig())
    model.config.is_encoder_decoder = True
    with pytest.raises(UnsupportedModelError, match="OwnEncoder has an encoder and a decoder, and of such models"):
        nopad.packed(model)


def test_two_versions_of_one_class():
    model = own.OwnEncoder(own.OwnConfig())
    other = type("ByHand", (own.ByHand,), {"__module__": own.__name__})
    model.layers[1].attention = other(model.config)
    with pytest.raises(UnsupportedModelError, match=r"has modules of two versions of own.ByHand: its code was loaded"):
        nopad.packed(model)


def test_a_method_of_its_own_is_proven_on_the_model_itself_and_not_remembered(tmp_path):
    model = own.OwnEncoder(own.OwnConfig(num_hidden_layers=1))
    model.layers[0].mlp.forward = lambda x: x  # a small copy would not have it
    found = proof_of(model)
    assert found.admitted
    assert found.how.startswith("a copy of the whole model, ")
    assert not list(tmp_path.rglob("*.json"))


def test_never_refuses_as_before():
    with pytest.raises(
        UnsupportedModelError, match="nopad does not know models of type 'own', whose sequences may see"
    ):
        nopad.packed(own.OwnEncoder(own.OwnConfig()), prove="never")
    with pytest.raises(UnsupportedModelError, match="nopad does not know the head of Tagger: it is not a class of"):
        nopad.packed(own.Tagger(own.bert_config()), prove="never")
    with pytest.raises(OptionError, match="'sometimes'"):
        nopad.packed(own.Tagger(own.bert_config()), prove="sometimes")


def test_types_of_the_tables_are_not_proven(monkeypatch):
    monkeypatch.setattr(front, "proof_of", None)
    nopad.packed(t.BertModel(own.bert_config()))
    with pytest.raises(UnsupportedModelError, match="xlnet cannot run on packs: its relative attention"):
        nopad.packed(t.XLNetModel(t.XLNetConfig(d_model=32, n_layer=1, n_head=4, d_inner=32, vocab_size=99)))


def test_always_proves_what_a_table_refuses():
    config = t.LayoutLMConfig(vocab_size=99, hidden_size=32, num_hidden_layers=2, num_attention_heads=4)
    with pytest.raises(UnsupportedModelError, match="its layers do not say whether they attend causally"):
        nopad.packed(t.LayoutLMModel(config))
    model = nopad.packed(t.LayoutLMModel(config).eval(), prove="always")
    assert state_of(model).family.mixers == ("LayoutLMSelfAttention",)
    sequences = [[5, 6, 7], [9, 8]]
    batch = nopad.PackedBatch.from_sequences(sequences)
    states = batch.unpack_tokens(model(**batch).last_hidden_state)
    alone = model(input_ids=torch.tensor([sequences[1]])).last_hidden_state[0]
    assert float((states[1] - alone).detach().abs().max()) <= 1e-6


# Lines of the table that probing finds again, from nothing but the classes: routes, mixing modules, positions.
AGAIN = {
    "falcon_h1": ("route", "mixers", "attends", "pooled"),
    "roberta": ("route", "after_padding", "pooler"),
    "roformer": ("route", "mixers", "places", "narrow"),
}


@pytest.mark.parametrize("kind", AGAIN)
def test_lines_of_the_table_are_found_again(kind, monkeypatch):
    table = families.FAMILIES[kind]
    monkeypatch.delitem(families.FAMILIES, kind)
    config = t.CONFIG_MAPPING[kind]()
    causal = kind == "falcon_h1"
    with torch.device("meta"):  # the model itself is never run
        model = (t.AutoModelForCausalLM if causal else t.AutoModel).from_config(config)
    found = proof_of(model)
    assert found.admitted, found.reason
    line = found.of(model)
    for name in AGAIN[kind]:
        assert getattr(line, name) == getattr(table, name), name
