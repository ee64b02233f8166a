"""Modules of one's own around a model: admitted with the results of each sequence alone, or refused by name."""

from __future__ import annotations

import copy
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parent))

import own
import wrapping

import nopad
from nopad.admitting import front
from nopad.errors import BatchError, NotPackSafeError, OptionError, UnsupportedModelError
from nopad.model import is_packed
from nopad.model.proven import Proven
from nopad.model.safety import STATE
from nopad.model.wrapper_parts import Admitted, _outer, leaves_of

LENGTHS = (9, 1, 40, 17)
FORMS = {"flat": nopad.Flat(), "rows": nopad.Rows(44), "end to end": nopad.Rows(41, end_to_end=True)}
CLASS = "classification"


@pytest.fixture(autouse=True, scope="module")
def _proofs_of_this_file(tmp_path_factory):
    """A class that several tests use is proven once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("proofs")))
        yield


@pytest.fixture
def own_proofs(tmp_path, monkeypatch):
    """A test in which nothing has been proven before; the folder of its proofs."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def drawn(kind):
    torch.manual_seed(3)
    made = kind().double().eval()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    return made


def sequences():
    torch.manual_seed(4)
    return [torch.randint(0, 300, (n,)) for n in LENGTHS]


def tensors(output):
    return {name: value.double() for name, value in leaves_of(output) if isinstance(value, torch.Tensor)}


def alone(stock, ids):
    mask = {} if isinstance(stock, wrapping.Unmasked) else {"attention_mask": torch.ones_like(ids[None])}
    return tensors(stock(input_ids=ids[None], **mask))


def apart(one, two):
    return float((one - two).detach().abs().max()) / max(float(two.detach().abs().max()), 1e-30)


@pytest.mark.usefixtures("own_proofs")
@pytest.mark.parametrize("kind", wrapping.ADMITTED)
def test_outputs_and_gradients_are_those_of_each_sequence_alone(kind):
    stock, given = drawn(kind), sequences()
    wanted = [alone(stock, ids) for ids in given]
    weights = [{name: torch.randn_like(value[0]) for name, value in one.items()} for one in wanted]
    total = sum((one[name][0] * by[name]).sum() for one, by in zip(wanted, weights, strict=True) for name in one)
    slopes = torch.autograd.grad(total, list(stock.parameters()), allow_unused=True)
    model = nopad.packed(copy.deepcopy(stock))
    assert is_packed(model)
    for form in FORMS.values():
        batch = nopad.PackedBatch.from_sequences(given, form=form)
        made = tensors(model(**batch))
        assert made.keys() == wanted[0].keys()
        total = 0.0
        for name, value in made.items():
            per_token = tuple(value.shape[:2]) == batch.layout.shape
            parts = (batch.unpack_tokens if per_token else batch.unpack_sequences)(value)
            for one, other, by in zip(parts, wanted, weights, strict=True):
                assert one.shape == other[name][0].shape
                assert apart(one, other[name][0]) <= 1e-12
                total = total + (one * by[name]).sum()
        again = torch.autograd.grad(total, list(model.parameters()), allow_unused=True)
        largest = max(float(slope.abs().max()) for slope in slopes if slope is not None)
        for one, two in zip(again, slopes, strict=True):
            assert (one is None) == (two is None)
            assert one is None or float((one - two).abs().max()) <= 1e-12 * largest


@pytest.mark.usefixtures("own_proofs")
@pytest.mark.parametrize("kind", wrapping.REFUSED)
def test_what_is_not_each_sequences_own_is_refused_by_name(kind):
    model = kind().eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises((UnsupportedModelError, OptionError), match=wrapping.REFUSED[kind]) as error:
        nopad.packed(model)
    assert "wrapped." not in str(error.value)
    assert not is_packed(model)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in model.modules())


def packed_of(kind, **how):
    stock = drawn(kind)
    return stock, nopad.packed(copy.deepcopy(stock), **how)


def trusted(model):
    """Let changes of a wrapper's code be, to see what catches them else."""
    vars(model)[STATE].proven = Proven(frozenset())


def held_to(stock, model, given=None):
    given = sequences() if given is None else given
    batch = nopad.PackedBatch.from_sequences(given, form=nopad.Rows(44))
    for one, ids in zip(batch.unpack_tokens(model(**batch)), given, strict=True):
        assert apart(one, stock(ids[None])[0]) <= 1e-12


def labelled(kind, form):
    torch.manual_seed(5)
    given, per_sequence = sequences(), kind is wrapping.Pooler
    labels = [torch.randint(0, 3, (1 if per_sequence else len(ids),)) for ids in given]
    if per_sequence:
        how = {"sequence_columns": {"labels": torch.cat(labels).numpy()}}
    else:
        labels[0][2] = labels[2][30] = -100
        how = {"columns": {"labels": [one.tolist() for one in labels]}}
    return given, labels, nopad.PackedBatch.from_sequences(given, form=form, **how)


@pytest.mark.parametrize("kind", [wrapping.Trained, wrapping.Shifted, wrapping.Pooler])
@pytest.mark.parametrize("form", ["flat", "rows"])
def test_a_mean_of_labels_is_that_of_all_sequences(kind, form):
    stock, model = packed_of(kind)
    given, labels, batch = labelled(kind, FORMS[form])
    found = model(**batch)
    loss = found[0] if isinstance(found, tuple) else found["loss"]
    scores, wanted = [], []
    for ids, each in zip(given, labels, strict=True):
        made = stock(input_ids=ids[None], attention_mask=torch.ones_like(ids[None]))
        logits = made[0] if isinstance(made, tuple) else made["logits"]
        shift = kind is wrapping.Shifted
        scores.append(logits[0, :-1] if shift else logits.flatten(0, -2))
        wanted.append(each[1:] if shift else each)
    expected = nn.functional.cross_entropy(torch.cat(scores), torch.cat(wanted))
    assert apart(loss, expected) <= 1e-12


def test_labels_in_padding_count_nothing():
    _, model = packed_of(wrapping.Trained)
    _, _, batch = labelled(wrapping.Trained, nopad.Rows(50))
    wanted = model(**batch).loss
    batch["labels"] = batch["labels"].masked_fill(torch.from_numpy(batch.sequence_ids == 0), 1)
    assert torch.equal(model(**batch).loss, wanted)


def test_labels_that_cannot_be_given():
    _, model = packed_of(wrapping.Summed)
    _, _, batch = labelled(wrapping.Summed, nopad.Flat())
    with pytest.raises(BatchError, match=r"labels were given, and the proof of Summed was without them: its loss is"):
        model(**batch)
    batch.pop("labels")
    assert model(**batch)[0].shape == (1, sum(LENGTHS), 3)
    _, model = packed_of(wrapping.Shifted)
    _, _, batch = labelled(wrapping.Shifted, FORMS["end to end"])
    with pytest.raises(BatchError, match="Shifted shifts labels within rows, and these rows are filled end to end"):
        model(**batch)
    batch["labels"] = torch.zeros(3, dtype=torch.long)
    with pytest.raises(BatchError, match=r"labels of Shifted must be a tensor of integers \[2, 41\]"):
        model(**batch)


def test_token_types_are_each_sequences_own():
    stock, model = packed_of(wrapping.Placed)
    given = sequences()
    types = [torch.arange(len(ids)) % 2 for ids in given]
    batch = nopad.PackedBatch.from_sequences(given, columns={"token_type_ids": types})
    for one, ids, kind in zip(batch.unpack_tokens(model(**batch)), given, types, strict=True):
        assert apart(one, stock(ids[None], token_type_ids=kind[None])[0]) <= 1e-12


def test_arguments_that_the_proof_was_without():
    _, model = packed_of(wrapping.Valued)
    batch = nopad.PackedBatch.from_sequences(sequences())
    with pytest.raises(BatchError, match="num_items_in_batch was given, and the proof of Valued was without it"):
        model(**batch, num_items_in_batch=torch.tensor(3))
    with pytest.raises(BatchError, match="logits_to_keep was given, and the proof of Valued was without it"):
        model(**batch, logits_to_keep=1)
    with pytest.raises(BatchError, match=r"a batch was given as one argument; call model\(\*\*batch\)"):
        model(batch)
    with pytest.raises(BatchError, match="input_ids is of a packed batch, and its attention_mask is not there"):
        model(input_ids=batch["input_ids"])
    with pytest.raises(BatchError, match=r"no input_ids were given to Valued"):
        model(attention_mask=batch["attention_mask"])
    assert model(**batch)[2].shape == (1, sum(LENGTHS))


def test_a_model_that_came_later_is_refused():
    stock, model = packed_of(wrapping.Tagger)
    batch = nopad.PackedBatch.from_sequences(sequences())
    before, model.encoder = model.encoder, stock.encoder
    with pytest.raises(UnsupportedModelError, match="encoder of Tagger was put there after it was made pack-safe"):
        model(**batch)
    model.encoder = before
    head, model.head = model.head, wrapping.Recurrent().double().lstm
    with pytest.raises(UnsupportedModelError, match="head of Tagger is another module than when it was made pack-safe"):
        model(**batch)
    model.head = head
    model.extra = wrapping.Tagger()
    with pytest.raises(UnsupportedModelError, match="of Tagger was put there after it was made pack-safe"):
        model(**batch)
    del model.extra
    held_to(stock, model)
    nopad.unpacked(model.encoder)
    with pytest.raises(UnsupportedModelError, match="encoder of Tagger is no longer pack-safe by itself"):
        model(**batch)


def test_layers_of_the_model_inside_may_be_replaced():
    stock, model = packed_of(wrapping.Tagger)
    for one in (stock, model):
        torch.manual_seed(9)
        one.encoder.encoder.layer[0] = type(one.encoder.encoder.layer[0])(one.encoder.config).double().eval()
    model.encoder.encoder.layer[0].attention.self.config = model.encoder.config
    held_to(stock, model)


class Hollow(nn.ModuleList):
    """A list of modules without any, so its truth value is False; the model is an attribute of it."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def __len__(self):
        return 0

    def forward(self, **inputs):
        return self.inner(**inputs)


def test_modules_without_entries_are_looked_into():
    names = [name for name, _ in _outer(nn.Sequential(Hollow(nn.Linear(2, 2))))]
    assert names == ["", "0", "0.inner"]


def test_copies_and_weights_stay_as_they_are():
    stock, model = packed_of(wrapping.Deep)
    assert model.state_dict().keys() == stock.state_dict().keys()
    other = copy.deepcopy(model)
    assert other.encoder is not model.encoder
    del model
    held_to(stock, other)
    assert nopad.unpacked(other) is other
    assert not is_packed(other)
    assert not is_packed(other.encoder)
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in other.modules())
    batch = nopad.PackedBatch.from_sequences([[5, 6], [7]])
    with pytest.raises(NotPackSafeError):
        other(batch["input_ids"], batch["attention_mask"])
    held_to(stock, nopad.packed(other))
    with pytest.raises(OptionError, match="is not pack-safe"):
        nopad.unpacked(stock)


def test_training_with_dropout_and_after_an_error():
    stock, model = packed_of(wrapping.Deep)
    batch = nopad.PackedBatch.from_sequences(sequences())
    model.train()
    assert not torch.equal(model(**batch), model(**batch))
    model(**batch).sum().backward()
    assert all(parameter.grad is not None for name, parameter in model.named_parameters() if "pooler" not in name)
    model.eval()
    with pytest.raises(BatchError, match="input_ids hold 300 at"):
        model(**nopad.PackedBatch.from_sequences([[5, 300], [7]]))
    ids = torch.tensor([[5, 6, 7]])
    assert torch.equal(model(ids), stock(ids))
    held_to(stock, model)


def test_checkpointing_around_the_model_inside_is_refused_in_the_backward_pass():
    class Checkpointed(wrapping.Tagger):
        around = False

        def states(self, input_ids, attention_mask):
            if not self.around:
                return super().states(input_ids, attention_mask)
            run = super().states
            return torch.utils.checkpoint.checkpoint(run, input_ids, attention_mask, use_reentrant=False)

    _, model = packed_of(Checkpointed)
    model.around = True
    trusted(model)
    found = model(**nopad.PackedBatch.from_sequences(sequences()))
    with pytest.raises(BatchError, match=r"mask of a packed batch outside of a call of Checkpointed"):
        found.sum().backward()


def test_a_call_that_does_something_else_than_the_proof_saw():
    class Switched(wrapping.Tagger):
        how = "tokens"

        def forward(self, input_ids, attention_mask=None):
            states = self.states(input_ids, attention_mask)
            if self.how == "twice":
                states = states + self.states(input_ids, attention_mask)
            return {
                "first": lambda: states[:, 0],
                "nothing": lambda: self.words,
                "object": lambda: {"object": object()},
            }.get(self.how, lambda: states)()

        words = None

    _, model = packed_of(Switched)
    trusted(model)
    batch = nopad.PackedBatch.from_sequences(sequences())
    said = {
        "first": r"output 0 of Switched has the shape \[1, 32\] and not \[1, 67, ...\]: it is of rows",
        "twice": "Switched calls BertModel more than once",
        "object": "object of Switched is a object, in which nopad cannot look",
    }
    for how, words in said.items():
        model.how = how
        with pytest.raises(UnsupportedModelError, match=words):
            model(**batch)
    model.how = "tokens"
    assert model(**batch).shape == (1, 67, 32)


def test_options_are_those_of_the_model_inside():
    _, model = packed_of(wrapping.Tagger, backend="mask", max_sequences=2)
    with pytest.raises(BatchError, match="the batch has 4 sequences, and this model was made pack-safe for 2"):
        model(**nopad.PackedBatch.from_sequences(sequences()))
    with pytest.raises(OptionError, match="this Tagger is pack-safe already"):
        nopad.packed(model)
    stock = drawn(wrapping.Tagger)
    nopad.packed(stock.encoder)
    with pytest.raises(OptionError, match="encoder of this Tagger is pack-safe by itself; undo it"):
        nopad.packed(stock)


@pytest.mark.parametrize(
    ("kind", "head"),
    [
        (wrapping.Trained, "causal"),
        (wrapping.Trained, CLASS),
        (wrapping.Pooler, "tokens"),
        (wrapping.Tagger, "answers"),
    ],
)
def test_a_head_that_the_proof_contradicts(kind, head):
    with pytest.raises(
        OptionError, match=f"{kind.__name__} has no head '{head}': by its proof it gives one result per"
    ):
        nopad.packed(kind(), head=head)


def test_a_head_that_the_proof_confirms():
    for kind, head in ((wrapping.Trained, "tokens"), (wrapping.Shifted, "causal"), (wrapping.Pooler, CLASS)):
        assert is_packed(nopad.packed(kind(), head=head))


def test_never_believes_nothing():
    with pytest.raises(UnsupportedModelError, match=r"Tagger is a module of your own around BertModel, which only a"):
        nopad.packed(wrapping.Tagger(), head="tokens", prove="never")


def test_a_model_of_no_table_inside_is_proven_too():
    class Around(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = own.OwnEncoder(own.OwnConfig())
            self.head = nn.Linear(64, 2)

        def forward(self, input_ids, attention_mask=None):
            return self.head(self.inner(input_ids, attention_mask).last_hidden_state)

    stock, model = packed_of(Around)
    held_to(stock, model)


@pytest.mark.filterwarnings("ignore")  # PEFT calls what transformers deprecates
def test_adapters_in_the_model_inside():
    peft = pytest.importorskip("peft")
    stock = wrapping.Tagger()
    config = peft.LoraConfig(r=2, target_modules=["query", "value"], init_lora_weights=False)
    stock.encoder = peft.get_peft_model(stock.encoder, config)
    stock = stock.double().eval()
    held_to(stock, nopad.packed(copy.deepcopy(stock)))
    prompted = wrapping.Tagger()
    prompts = peft.PromptTuningConfig(task_type="FEATURE_EXTRACTION", num_virtual_tokens=2)
    prompted.encoder = peft.get_peft_model(prompted.encoder, prompts)
    with pytest.raises(UnsupportedModelError, match="puts tokens of its own before each row"):
        nopad.packed(prompted)


def test_several_threads_call_at_once():
    from concurrent.futures import ThreadPoolExecutor

    stock, model = packed_of(wrapping.Scaled)
    batches = [nopad.PackedBatch.from_sequences([[at + 5, 6, 7], [8 + at]]) for at in range(8)]
    with torch.no_grad(), ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda batch: model(**batch), batches))
        for at, (made, batch) in enumerate(zip(found, batches, strict=True)):
            assert apart(batch.unpack_tokens(made)[1], stock(torch.tensor([[8 + at]]))[0]) <= 1e-12


class Closed(wrapping.Tagger):
    """A class whose method reads a value outside of it."""


def closed(limit):
    def between(self, states, input_ids, attention_mask):
        return states + states.mean(1, keepdim=True) if states.shape[1] > limit else states

    return type("Closed", (Closed,), {"between": between, "__module__": __name__})


def counted(monkeypatch):
    done, real = [], front.prove_wrapper

    def prove(*given):
        done.append(type(given[0]).__name__)
        return real(*given)

    monkeypatch.setattr(front, "prove_wrapper", prove)
    return done


def test_proofs_are_remembered_with_all_that_they_depend_on(monkeypatch, own_proofs):
    done = counted(monkeypatch)
    for _ in range(2):
        nopad.packed(wrapping.Tagger())
    assert len(done) == 1
    nopad.packed(wrapping.Tagger(), prove="always")
    assert len(done) == 2
    other = wrapping.Tagger()
    other.head = nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 3))
    nopad.packed(other)
    nopad.packed(wrapping.Tagger(hidden_dropout_prob=0.0))
    assert len(done) == 4
    for _ in range(2):  # refusals are remembered too
        with pytest.raises(UnsupportedModelError, match=wrapping.REFUSED[wrapping.First]):
            nopad.packed(wrapping.First())
    assert len(done) == 5
    assert len(list(own_proofs.rglob("*.json"))) == 4


@pytest.mark.usefixtures("own_proofs")
def test_closures_with_other_constants_share_no_proof(monkeypatch):
    done = counted(monkeypatch)
    nopad.packed(closed(10**9)())
    with pytest.raises(UnsupportedModelError, match="what Closed computes is not always the same"):
        nopad.packed(closed(100)())
    assert len(done) == 2


def test_a_damaged_file_is_no_proof(monkeypatch, own_proofs):
    done = counted(monkeypatch)
    nopad.packed(wrapping.Tagger())
    [file] = own_proofs.rglob("*.json")
    file.write_text(file.read_text().replace('"admitted": {', '"admitted": null, "x": {'))
    nopad.packed(wrapping.Tagger())
    assert len(done) == 2


def test_what_wants_a_model_of_transformers_says_so():
    class Configured(wrapping.Tagger):
        def build(self):
            self.config = self.encoder.config

    model = nopad.packed(Configured())
    from nopad.model.safety import state_of

    with pytest.raises(OptionError, match="this Configured is a module of your own around a model, and pack-safe in"):
        state_of(model)
    with pytest.raises(OptionError, match="Configured"):
        nopad.audit(model)


@pytest.mark.parametrize(("head", "fits"), [(None, True), ("tokens", True), ("causal", True), (CLASS, False)])
def test_a_head_of_a_module_without_labels(head, fits):
    admitted = Admitted(labels=None, sequences=False)
    if fits:
        front._check_head("Mine", head, admitted)
    else:
        with pytest.raises(
            OptionError, match="Mine has no head 'classification': by its proof it gives one result per"
        ):
            front._check_head("Mine", head, admitted)
