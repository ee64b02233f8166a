"""Modules replaced, wrapped or copied after `packed`: judged by each sequence alone on a stock model in float64.

Both models are made the same way, only one of them pack-safe beforehand, and run once before they are changed.
"""

from __future__ import annotations

import copy

import pytest
import torch
import transformers as t
from packaging.version import Version
from torch import nn
from zoo import FORMS, build

import nopad
from nopad.errors import OptionError, UnsupportedModelError
from nopad.model import is_packed

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # of transformers, about names that peft uses

CLASSIFIER = "sequence classification"
KINDS = ["albert", "bert", "deberta", "distilbert", "electra", "esm", "llama", "modernbert", "mpnet", "roberta"]
TARGETS = {"distilbert": ["q_lin", "v_lin"]}  # peft itself fails on all-linear there
WAYS = [
    *[(kind, then) for kind in KINDS for then in ("wrapped", "merged and copied")],
    *[(kind, then) for kind in ("albert", "roberta") for then in ("merged", "unloaded", "copied")],
]


def both(kind, change, head=CLASSIFIER, **how):
    """A pack-safe model and a stock one, changed in the same way after the first was made pack-safe and run."""
    made = []
    for packs in (True, False):
        model = build(kind, head, **how)
        if packs:
            nopad.packed(model)(**nopad.PackedBatch.from_sequences([[5, 6, 7], [8]]))
        torch.manual_seed(3)
        made.append(change(model).double().eval())
    return made


def agrees(model, stock, sequences, name="logits"):
    for form in FORMS.values():
        batch = nopad.PackedBatch.from_sequences(sequences, pad_id=1, **form)
        with torch.no_grad():
            found = batch.unpack_sequences(model(**batch)[name])
            for number, sequence in enumerate(sequences):
                wanted = stock(input_ids=sequence[None])[name][0]
                torch.testing.assert_close(found[number], wanted, atol=1e-12, rtol=0)


def adapted(model, targets="all-linear"):
    peft = pytest.importorskip("peft")
    how = peft.LoraConfig(task_type="SEQ_CLS", target_modules=targets, init_lora_weights=False)
    return peft.get_peft_model(model, how)


class TestPeft:
    @pytest.mark.parametrize(("kind", "then"), WAYS)
    def test_wrapped_after(self, kind, then, sequences):
        def change(model):
            model = adapted(model, TARGETS.get(kind, "all-linear"))
            if "merged" in then:
                model = model.merge_and_unload()
            if then == "unloaded":
                model = model.unload()
            return copy.deepcopy(model) if "copied" in then else model

        model, stock = both(kind, change)
        assert is_packed(model)
        agrees(model, stock, sequences)

    def test_adapters_off_and_on(self, sequences):
        model, stock = both("roberta", adapted)
        agrees(model, stock, sequences)
        with model.disable_adapter(), stock.disable_adapter():
            agrees(model, stock, sequences)
        agrees(model, stock, sequences)

    def test_undone(self, sequences):
        model, _ = both("roberta", adapted)
        nopad.unpacked(model)
        assert not any(
            type(hook).__module__.startswith("nopad")
            for module in model.modules()
            for hook in (*module._forward_pre_hooks.values(), *module._forward_hooks.values())
        )


def put(name, make):
    def change(model):
        parent, _, last = name.rpartition(".")
        setattr(model.get_submodule(parent), last, make(model))
        return model

    return change


def linear(_):
    return nn.Linear(24, 3)


def scorer(_):
    return nn.Sequential(nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 3))


class Attends(nn.Module):
    """Right shape, and another answer for one token than for many."""

    def __init__(self):
        super().__init__()
        self.weigh, self.out = nn.Linear(24, 1), nn.Linear(24, 2)

    def forward(self, states):
        return self.out((states * torch.softmax(self.weigh(states), dim=1)).sum(1))


CASES = [
    ("bert", "classifier", linear),
    ("albert", "classifier", linear),
    ("distilbert", "classifier", linear),
    ("distilbert", "pre_classifier", lambda _: nn.Linear(24, 24)),
    ("modernbert", "head", lambda _: nn.Linear(24, 24)),
    ("albert", "albert.pooler", lambda _: nn.Linear(24, 24)),
    ("llama", "score", linear),
    ("gpt2", "score", scorer),
    ("bert", "bert", lambda model: t.BertModel(model.config)),
    ("roberta", "classifier", lambda model: type(model.classifier)(model.config)),
    ("roberta", "classifier", lambda model: copy.deepcopy(model.classifier)),
    ("deberta", "pooler", lambda model: copy.deepcopy(model.pooler)),
    ("mpnet", "mpnet", lambda model: copy.deepcopy(model.mpnet)),
]


class TestReplaced:
    @pytest.mark.parametrize("copied", [False, True], ids=["", "copied"])
    @pytest.mark.parametrize(("kind", "name", "make"), CASES)
    def test_by_another(self, kind, name, make, copied, sequences):
        def change(model):
            model = put(name, make)(model)
            return copy.deepcopy(model) if copied else model

        agrees(*both(kind, change), sequences)

    @pytest.mark.parametrize(
        ("kind", "name", "make", "says"),
        [
            ("roberta", "classifier", lambda _: Attends(), "classifier of Roberta.* is now a Attends"),
            ("electra", "classifier", linear, "classifier of Electra.* is now a Linear"),
            ("deberta-v2", "pooler", lambda _: Attends(), "pooler of Deberta.* is now a Attends"),
            ("bert", "bert.pooler", lambda _: Attends(), "pooler of Bert.* is now a Attends"),
            ("llama", "score", lambda _: nn.Conv1d(24, 3, 3), "has a Conv1d, which goes along a row"),
        ],
    )
    def test_by_what_nobody_knows(self, kind, name, make, says, sequences):
        model, _ = both(kind, put(name, make))
        with pytest.raises(UnsupportedModelError, match=says):
            model(**nopad.PackedBatch.from_sequences(sequences))

    def test_a_recurrent_head_per_token(self, sequences):
        model = nopad.packed(build("bert", "token classification"))
        model.classifier = nn.Sequential(nn.LSTM(24, 2, batch_first=True))
        with pytest.raises(UnsupportedModelError, match=r"has a LSTM \(0\), which goes along a row"):
            model(**nopad.PackedBatch.from_sequences(sequences))

    @pytest.mark.parametrize("how", ["sdpa", "eager", "flex_attention", "flash_attention_2"])
    @pytest.mark.parametrize("form", ["flat", "rows"])
    @pytest.mark.parametrize(
        ("kind", "part"),
        [
            ("bert", "bert.encoder.layer.1"),
            ("bert", "bert.encoder"),
            ("llama", "model.layers.1"),
            ("llama", "model.layers.0.self_attn"),
        ],
    )
    def test_by_a_part_with_its_own_configuration(self, kind, part, form, how, sequences):
        def change(model):
            other = build(kind, CLASSIFIER)
            other.config._attn_implementation_internal = how
            return put(part, lambda _: other.get_submodule(part))(model)

        model, stock = both(kind, change)
        for module in stock.modules():
            if hasattr(module, "config"):
                module.config = stock.config
        batch = nopad.PackedBatch.from_sequences(sequences, **FORMS[form])
        says = rf"Attention in this .*, {part}.*, has a configuration of its own, and its attention is '{how}', not"
        with pytest.raises(UnsupportedModelError, match=says):
            model(**batch)
        nopad.unpacked(model)
        with pytest.raises(UnsupportedModelError, match=says):  # also from the beginning
            nopad.packed(model)
        assert model.config._attn_implementation == stock.config._attn_implementation
        for module in model.get_submodule(part).modules():
            if hasattr(module, "config"):
                module.config = model.config
        agrees(nopad.packed(model), stock, sequences)

    def test_by_a_part_that_does_not_attend(self, sequences):
        """The configuration of such a module does not matter."""
        agrees(*both("llama", put("model.layers.1.mlp", lambda _: build("llama").layers[1].mlp)), sequences)

    def test_put_back(self, sequences):
        model, stock = build("roberta", CLASSIFIER), build("roberta", CLASSIFIER)
        nopad.packed(model)
        before, model.classifier = model.classifier, Attends().double()
        with pytest.raises(UnsupportedModelError):
            model(**nopad.PackedBatch.from_sequences(sequences))
        model.classifier = before
        agrees(model, stock, sequences)

    def test_an_ordinary_call_feeds_nothing(self, sequences):
        model, stock = both("roberta", adapted)
        with torch.no_grad():
            for sequence in sequences:
                assert torch.equal(model(input_ids=sequence[None]).logits, stock(input_ids=sequence[None]).logits)

    def test_a_module_copied_out_of_a_model_drags_nothing_along(self):
        model = nopad.packed(build("roberta", CLASSIFIER))
        alone = copy.deepcopy(model.classifier)
        hooks = [*alone._forward_pre_hooks.values(), *alone._forward_hooks.values()]
        assert hooks
        assert not any(isinstance(value, nn.Module) for hook in hooks for value in vars(hook).values())
        states = torch.ones(1, 2, 24, dtype=torch.float64)
        assert torch.equal(alone(states), model.classifier(states))


@pytest.mark.slow
class TestCompiledParts:
    """What is compiled does not run hooks: a part with a hook in it must not be left out in silence."""

    @pytest.fixture(autouse=True)
    def _fresh(self):
        import torch._dynamo

        torch._dynamo.reset()

    @pytest.mark.parametrize("way", ["in place", "wrapped"])
    @pytest.mark.parametrize(
        ("part", "says"),
        [
            ("bert", {"in place": "encoder of Bert.* was to run once and ran 0 times", "wrapped": "have no names"}),
            (
                "bert.pooler",
                {"in place": "pooler of Bert.* was to run once and ran 0 times", "wrapped": "is now a Opt"},
            ),
            ("bert.encoder", None),
            ("classifier", None),
        ],
    )
    @pytest.mark.filterwarnings("ignore")  # the compiler's own
    def test_right_or_refused(self, part, says, way, sequences):
        model, stock = nopad.packed(build("bert", CLASSIFIER)), build("bert", CLASSIFIER)
        if way == "in place":
            model.get_submodule(part).compile(backend="eager")
        else:
            put(part, lambda model: torch.compile(model.get_submodule(part), backend="eager"))(model)
        batch = nopad.PackedBatch.from_sequences(sequences, **FORMS["rows"])
        if says is not None:
            with pytest.raises(UnsupportedModelError, match=says[way]):
                model(**batch)
            return
        with torch.no_grad():
            found = model(**batch).logits
            for number, sequence in enumerate(sequences):
                torch.testing.assert_close(found[number], stock(input_ids=sequence[None]).logits[0], atol=1e-12, rtol=0)


class TestSharedAndNested:
    def test_two_models_share_an_encoder(self, sequences):
        classifier, tagger = build("bert", CLASSIFIER), build("bert", "token classification")
        stock = build("bert", CLASSIFIER)
        tagger.bert = classifier.bert = build("bert", CLASSIFIER).bert
        stock.bert = copy.deepcopy(classifier.bert)
        if Version(t.__version__) < Version("5.20"):  # which set the attention of one configuration only
            with pytest.raises(UnsupportedModelError, match=r"Bert\w+ in this .* has a configuration of its own"):
                nopad.packed(classifier)
            tagger.config = classifier.config
            for part in classifier.bert.modules():
                if hasattr(part, "config"):
                    part.config = classifier.config
        for model in (classifier, tagger):
            nopad.packed(model)
        batch = nopad.PackedBatch.from_sequences(sequences)
        for _ in range(2):
            agrees(classifier, stock, sequences)
            with torch.no_grad():
                found = batch.unpack_tokens(tagger(**batch).logits)
                for part, sequence in zip(found, sequences, strict=True):
                    wanted = tagger.classifier(stock.bert(input_ids=sequence[None]).last_hidden_state)[0]
                    torch.testing.assert_close(part, wanted, atol=1e-12, rtol=0)
            classifier.classifier = copy.deepcopy(classifier.classifier)  # so that hooks are put on anew

    def test_a_part_that_is_pack_safe_by_itself(self):
        model = build("bert", CLASSIFIER)
        nopad.packed(model.bert)
        with pytest.raises(
            OptionError, match=r"bert of this BertForS.* is pack-safe by itself; undo it, nopad\.unpacked"
        ):
            nopad.packed(model)
        nopad.unpacked(model.bert)
        nopad.packed(model)

    def test_a_part_that_is_made_so_afterwards(self, sequences):
        model, stock = nopad.packed(build("bert", CLASSIFIER)), build("bert", CLASSIFIER)
        nopad.packed(model.bert)
        agrees(model, stock, sequences)
        agrees(model.bert, stock.bert, sequences, "pooler_output")

    def test_another_attention_afterwards(self, sequences):
        model = nopad.packed(build("bert", CLASSIFIER))
        model.set_attn_implementation("eager")
        batch = nopad.PackedBatch.from_sequences(sequences)
        with pytest.raises(UnsupportedModelError, match="was set to 'eager' after it was made pack-safe"):
            model(**batch)
        nopad.packed(nopad.unpacked(model))(**batch)


@pytest.mark.filterwarnings("ignore")  # of PyTorch
@pytest.mark.parametrize("before", [False, True], ids=["packed first", "sharded first"])
@pytest.mark.parametrize(
    ("kind", "part"), [("bert", "classifier"), ("roberta", "classifier"), ("deberta-v2", "deberta.encoder.layer.0")]
)
def test_sharded(kind, part, before, sequences, tmp_path):
    """`fully_shard` gives each module that it shards a class of its own."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = build(kind, "sequence classification")
    wanted = [model(input_ids=one[None]).logits[0].detach() for one in sequences]
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/ranks", rank=0, world_size=1)
    try:
        if not before:
            nopad.packed(model)
        mesh = init_device_mesh("cpu", (1,))
        attention = [m for m in model.modules() if type(m).__name__ == "DisentangledSelfAttention"]
        for module in [*attention, model.get_submodule(part), model]:
            fully_shard(module, mesh=mesh)
        if before:
            nopad.packed(model)
        found = model(**nopad.PackedBatch.from_sequences(sequences)).logits.detach()
    finally:
        torch.distributed.destroy_process_group()
    for mine, value in zip(found, wanted, strict=True):
        assert float((mine - value).abs().max()) < 1e-12


@pytest.mark.filterwarnings("ignore")  # of PyTorch
@pytest.mark.parametrize("kind", ["mamba", "roformer"])
def test_mixing_modules_sharded_by_themselves(kind, sequences, tmp_path):
    """Such a module has its weights for one run only, and nopad runs a mixing module once per group of sequences."""
    from tests.model.kinds import tiny
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    model = t.AutoModel.from_config(tiny(kind)).double().eval()
    sequences = [one % 60 for one in sequences]
    wanted = [model(input_ids=one[None])[0][0].detach() for one in sequences]
    nopad.packed(model)
    batch = nopad.PackedBatch.from_sequences(sequences, nopad.Rows(40))
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/ranks", rank=0, world_size=1)
    try:
        for module in [m for m in model.modules() if type(m).__name__ in ("MambaMixer", "RoFormerSelfAttention")]:
            fully_shard(module, mesh=init_device_mesh("cpu", (1,)))
        if kind == "roformer":
            with pytest.raises(UnsupportedModelError, match=r"RoFormerSelfAttention .*; shard the layer around it"):
                model(**batch)
            return
        found = batch.unpack_tokens(model(**batch)[0].detach())
    finally:
        torch.distributed.destroy_process_group()
    for mine, value in zip(found, wanted, strict=True):
        assert float((mine - value).abs().max()) < 1e-5  # its state is in float32
