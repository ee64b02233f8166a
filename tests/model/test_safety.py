"""`packed` and `unpacked`: what changes, what does not, and what is refused."""

from __future__ import annotations

import copy
import pickle
import threading

import pytest
import torch
import transformers as t
from packaging.version import Version
from zoo import FORMS, build, let

import nopad
from nopad.errors import BatchError, NotPackSafeError, OptionError, UnsupportedModelError
from nopad.model import admission, is_packed
from nopad.model.refused import REFUSED
from nopad.model.safety import state_of


@pytest.fixture
def batch(sequences):
    return nopad.PackedBatch.from_sequences(sequences)


def parts(model, batch, name="last_hidden_state"):
    with torch.no_grad():
        values = model(**batch)[name]
    per_token = tuple(values.shape[:2]) == batch.layout.shape
    return (batch.unpack_tokens if per_token else batch.unpack_sequences)(values)


def test_the_same_object_with_the_same_state():
    model = build("bert")
    before = copy.deepcopy(model.state_dict())
    assert nopad.packed(model) is model
    assert is_packed(model)
    assert model.state_dict().keys() == before.keys()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    with pytest.raises(OptionError, match="this BertModel is pack-safe already"):
        nopad.packed(model)
    assert nopad.unpacked(model) is model
    assert not is_packed(model)
    assert model.config._attn_implementation == "sdpa"
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in model.modules())
    with pytest.raises(OptionError, match="is not pack-safe; make it so with"):
        nopad.unpacked(model)


def test_unpacked_is_unsafe_again(batch):
    model = nopad.unpacked(nopad.packed(build("bert")))
    with pytest.raises(NotPackSafeError):
        model(**batch)


def test_an_ordinary_call_is_what_it_was(sequences):
    model = build("bert")
    ids = torch.stack([sequences[2], sequences[6]])
    mask = torch.ones_like(ids)
    mask[0, 20:] = 0
    with torch.no_grad():
        before = model(input_ids=ids, attention_mask=mask).last_hidden_state
        after = nopad.packed(model)(input_ids=ids, attention_mask=mask).last_hidden_state
        positional = model(ids, mask)[0]
    assert torch.equal(before, after)
    assert torch.equal(before, positional)


def test_arguments_by_position(batch):
    model = nopad.packed(build("bert"))
    with torch.no_grad():
        named = model(**batch).last_hidden_state
        plain = model(batch["input_ids"], batch["attention_mask"], position_ids=batch["position_ids"])[0]
        as_tuple = model(**batch, return_dict=False)
    assert torch.equal(named, plain)
    assert isinstance(as_tuple, tuple)
    assert torch.equal(named, as_tuple[0])


@pytest.mark.parametrize("backend", ["segments", "mask", "repack"])
@pytest.mark.parametrize("kind", ["bert", "modernbert", "llama", "deberta-v2"])
def test_gradient_checkpointing(kind, backend, sequences):
    def gradients(model):
        model.zero_grad()
        out = model(**nopad.PackedBatch.from_sequences(sequences, form=nopad.Rows(40)))
        torch.cat([part.sin().sum(-1) for part in out.last_hidden_state]).sum().backward()
        return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}

    model = nopad.packed(build(kind).train(), backend=backend)
    wanted = gradients(model)
    (getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable)()
    found = gradients(model)
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        assert torch.allclose(found[name], value, rtol=1e-12, atol=1e-14), name


def test_autocast(batch, sequences):
    model = nopad.packed(build("bert", dtype=torch.float32))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = parts(model, batch)
        alone = model(input_ids=sequences[2][None]).last_hidden_state[0]
    assert torch.allclose(found[2].float(), alone.float(), atol=5e-2)


@pytest.mark.parametrize("backend", ["segments", "mask", "repack"])
def test_padding_rows_give_no_nan(backend, sequences):
    batch = nopad.PackedBatch.from_sequences(sequences[:2], form=nopad.Rows(40, rows=3))
    model = nopad.packed(build("bert"), backend=backend)
    out = model(**batch).last_hidden_state
    out.sum().backward()
    assert torch.isfinite(out).all()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)


def test_two_threads_share_a_model(sequences):
    model = nopad.packed(build("bert"))
    halves = [nopad.PackedBatch.from_sequences(sequences[:4]), nopad.PackedBatch.from_sequences(sequences[4:])]
    wanted = [parts(model, half) for half in halves]
    wrong = []

    def work(which):
        for _ in range(20):
            found = parts(model, halves[which])
            if not all(torch.equal(a, b) for a, b in zip(found, wanted[which], strict=True)):
                wrong.append(which)

    threads = [threading.Thread(target=work, args=(which,)) for which in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_copy_works_by_itself(batch):
    model = nopad.packed(build("bert"))
    other = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(1.5)
    first, second = parts(model, batch), parts(other, batch)
    assert not torch.equal(first[0], second[0])
    nopad.unpacked(model)
    assert torch.equal(parts(other, batch)[0], second[0])


def test_an_error_inside_leaves_the_model_usable(batch, sequences):
    model = nopad.packed(build("bert"))
    broken = model.encoder.layer[1].register_forward_pre_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        model(**batch)
    broken.remove()
    with torch.no_grad():
        alone = model(input_ids=sequences[0][None]).last_hidden_state[0]
    assert torch.allclose(parts(model, batch)[0], alone, atol=1e-12)


def test_a_model_that_loses_the_layout_is_caught(batch):
    model = nopad.packed(build("bert"))

    def blind(module, args, kwargs):
        return args[:1], {name: value for name, value in kwargs.items() if name != "attention_mask"}

    model.encoder.layer[1].attention.register_forward_pre_hook(let(model, blind), with_kwargs=True)
    with pytest.raises(UnsupportedModelError, match="BertSelfAttention lost the layout of a packed batch on its way"):
        model(**batch)


def test_the_choice_of_backend_is_said_once(batch, caplog):
    from nopad.model import state

    state._say_once.cache_clear()
    model = nopad.packed(build("bert"))
    with caplog.at_level("INFO", logger="nopad"):
        parts(model, batch)
        parts(model, batch)
    assert [record.message for record in caplog.records] == [
        "BertModel on cpu: attention backend 'segments' for flat batches"
    ]


def test_columns_that_the_model_does_not_know_stay_behind(sequences):
    columns = {"weight": [0.5] * len(sequences), "name": ["a"] * len(sequences)}
    batch = nopad.PackedBatch.from_sequences(sequences, columns=columns)
    assert len(parts(nopad.packed(build("bert")), batch)) == len(sequences)


def test_token_types_go_along(sequences):
    model = build("bert")
    kinds = [torch.arange(s.numel()) % 2 for s in sequences]
    with torch.no_grad():
        alone = model(input_ids=sequences[3][None], token_type_ids=kinds[3][None]).last_hidden_state[0]
    batch = nopad.PackedBatch.from_sequences(sequences, columns={"token_type_ids": kinds})
    assert torch.allclose(parts(nopad.packed(model), batch)[3], alone, atol=1e-12)


def test_embeddings_instead_of_ids(sequences, batch):
    model = nopad.packed(build("bert"))
    wanted = parts(model, batch)
    with torch.no_grad():
        batch["inputs_embeds"] = model.embeddings.word_embeddings(batch.pop("input_ids"))
    assert torch.allclose(parts(model, batch)[4], wanted[4], atol=1e-12)
    batch["inputs_embeds"] = batch["inputs_embeds"].float()
    with pytest.raises(BatchError, match=r"inputs_embeds are torch.float32 and the model is torch.float64"):
        model(**batch)


class TestRefusals:
    def test_too_long_for_the_positions(self, sequences):
        model = nopad.packed(build("roberta"))
        fits = nopad.PackedBatch.from_sequences([[5] * 78])
        assert parts(model, fits)[0].shape == (78, 24)
        with pytest.raises(BatchError, match="sequence 1 has 79 tokens, and RobertaModel has 78 positions"):
            model(**nopad.PackedBatch.from_sequences([[5], [5] * 79]))
        with pytest.raises(BatchError, match="sequence 0 has 81 tokens, and DebertaModel has 80 positions"):
            nopad.packed(build("deberta"))(**nopad.PackedBatch.from_sequences([[5] * 81]))
        without_table = nopad.packed(build("deberta-v2", position_biased_input=False))
        assert parts(without_table, nopad.PackedBatch.from_sequences([[5] * 81]))[0].shape == (81, 24)

    def test_another_shape(self, batch):
        batch["input_ids"] = batch["input_ids"][:, 1:]
        with pytest.raises(
            BatchError, match=r"input_ids have the shape \(1, 106\); the batch is laid out in \(1, 107\)"
        ):
            nopad.packed(build("bert"))(**batch)

    def test_another_device(self, batch):
        batch["input_ids"] = batch["input_ids"].to("meta")
        with pytest.raises(BatchError, match=r"input_ids are on meta and the model on cpu; use batch\.to\('cpu'\)"):
            nopad.packed(build("bert"))(**batch)

    def test_no_token_at_all(self):
        import numpy as np

        from nopad.batch.guard import PackedMask
        from nopad.batch.layout import Layout

        layout = Layout.rows(np.zeros(0, dtype=np.int32), np.zeros(2, dtype=np.int64), 4)
        with pytest.raises(BatchError, match="the batch has no token at all"):
            nopad.packed(build("bert"))(
                input_ids=torch.zeros(2, 4, dtype=torch.long), attention_mask=PackedMask(layout)
            )

    @pytest.mark.parametrize(
        ("head", "name", "shape", "wanted"),
        [
            ("sequence classification", "labels", (3,), r"\[8\] or \[8, 2\]"),
            ("token classification", "labels", (8,), r"\[1, 107\]"),
            ("masked LM", "labels", (107,), r"\[1, 107\]"),
            ("question answering", "start_positions", (1, 107), r"\[8\]"),
            ("pre-training", "next_sentence_label", (1,), r"\[8\]"),
        ],
    )
    def test_wrong_labels(self, batch, head, name, shape, wanted):
        model = nopad.packed(build("bert", head))
        got = r"\[" + ", ".join(map(str, shape)) + r"\]"
        with pytest.raises(BatchError, match=f"{name} have the shape {got}; expected {wanted}"):
            model(**batch, **{name: torch.zeros(shape, dtype=torch.long)})

    def test_rows_filled_end_to_end_with_a_mask(self, sequences):
        batch = nopad.PackedBatch.from_sequences(sequences, **FORMS["end to end"])
        for kind in ("bert", "deberta"):
            with pytest.raises(BatchError, match="sequences go on in the next row here"):
                nopad.packed(build(kind), backend="mask")(**batch)

    def test_backends_that_need_a_gpu(self, batch):
        with pytest.raises(BatchError, match="the varlen kernel runs on CUDA in float16 or bfloat16, and this is cpu"):
            nopad.packed(build("bert"), backend="varlen")(**batch)
        with pytest.raises(BatchError, match="this model's attention is its own and has no 'varlen'"):
            nopad.packed(build("deberta"), backend="varlen")(**batch)
        with pytest.raises(BatchError, match="FlexAttention has no backward pass on a CPU"):
            nopad.packed(build("bert", dtype=torch.float32), backend="flex")(**batch)

    def test_unknown_backend(self):
        with pytest.raises(OptionError, match="unknown backend 'x'; there are auto, flex, mask, repack"):
            nopad.packed(build("bert"), backend="x")

    def test_classifying_rows_without_a_padding_token(self, sequences):
        model = nopad.packed(build("llama", "sequence classification", pad_token_id=None))
        with pytest.raises(BatchError, match=r"only with config\.pad_token_id set"):
            model(**nopad.PackedBatch.from_sequences(sequences, **FORMS["rows"]))

    def test_masked_share_of_esm(self, sequences):
        model = nopad.packed(build("esm", token_dropout=True))
        model(**nopad.PackedBatch.from_sequences(sequences))
        with pytest.raises(BatchError, match=r"token_dropout.*config\.token_dropout = False"):
            model(**nopad.PackedBatch.from_sequences([[4, 7, 8]]))

    @pytest.mark.parametrize("kind", sorted(REFUSED))
    def test_kinds_that_cannot_be(self, kind):
        with pytest.raises(UnsupportedModelError, match=f"{kind} cannot run on packs: "):
            nopad.packed(_model_of(t.PretrainedConfig(), kind))

    def test_a_convolution(self):
        with pytest.raises(UnsupportedModelError, match="its convolution \\(conv_kernel_size > 0\\) mixes tokens"):
            nopad.packed(build("deberta-v2", conv_kernel_size=3))

    def test_a_kind_nobody_knows(self):
        with pytest.raises(UnsupportedModelError, match="nopad does not know models of type 'new'"):
            nopad.packed(_model_of(t.PretrainedConfig(), "new"))

    def test_linear_attention(self):
        config = t.PretrainedConfig(layer_types=["full_attention", "linear_attention"])
        with pytest.raises(UnsupportedModelError, match="its layers of type linear_attention do not stop at sequences"):
            nopad.packed(_model_of(config, "llama"))

    def test_a_head_nobody_knows(self):
        model = t.BertForMultipleChoice(build("bert").config)
        with pytest.raises(UnsupportedModelError, match="nopad does not know the head of BertForMultipleChoice: "):
            nopad.packed(model)


def _model_of(config, kind):
    class Model(torch.nn.Module):
        pass

    config.model_type = kind
    model = Model()
    model.config = config
    return model


COPIED = [
    ("bert", "base", "pooler_output"),
    ("bert", "sequence classification", "logits"),
    ("distilbert", "sequence classification", "logits"),
    ("llama", "sequence classification", "logits"),
    ("roberta", "question answering", "start_logits"),
    ("albert", "base", "pooler_output"),
]


@pytest.mark.parametrize("how", ["deepcopy", "pickle"])
@pytest.mark.parametrize(("kind", "head", "name"), COPIED)
def test_a_copy_has_heads_of_its_own(sequences, kind, head, name, how):
    model = nopad.packed(build(kind, head))
    batch = nopad.PackedBatch.from_sequences(sequences)
    wanted = model(**batch)[name]
    copied = copy.deepcopy(model) if how == "deepcopy" else pickle.loads(pickle.dumps(model))
    assert torch.equal(copied(**batch)[name], wanted)
    with torch.no_grad():
        for parameter in copied.parameters():
            parameter.mul_(1.1)
    nopad.unpacked(model)
    assert copied(**batch)[name].shape == wanted.shape
    assert not torch.equal(copied(**batch)[name], wanted)


@pytest.mark.parametrize("kind", ["bert", "roberta", "gpt2", "llama"])
@pytest.mark.parametrize("form", ["flat", "rows", "end to end"])
def test_positions_that_were_left_out_are_put_in(sequences, kind, form):
    model = nopad.packed(build(kind))
    batch = nopad.PackedBatch.from_sequences(sequences, **FORMS[form])
    wanted = model(**batch).last_hidden_state
    found = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).last_hidden_state
    assert torch.equal(found, wanted)


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_the_models_own_causal_loss_is_not_for_rows_filled_end_to_end(sequences, kind):
    model = nopad.packed(build(kind, "causal LM"))
    batch = nopad.PackedBatch.from_sequences(sequences, columns={"labels": sequences}, **FORMS["end to end"])
    with pytest.raises(BatchError, match="the first token of a row would go unpredicted; take labels out"):
        model(**batch)


@pytest.mark.parametrize(
    ("kind", "head"), [("roberta", "question answering"), ("bert", "sequence classification"), ("modernbert", "base")]
)
def test_tuples_by_configuration(sequences, kind, head):
    batch = nopad.PackedBatch.from_sequences(sequences)
    wanted = nopad.packed(build(kind, head))(**batch)
    model = build(kind, head)
    model.config.return_dict = False
    found = nopad.packed(model)(**batch)
    assert isinstance(found, tuple)
    assert torch.equal(found[0], wanted[0])


def test_columns_that_stay_behind_are_named_once(sequences, caplog):
    admission._say_left.cache_clear()
    columns = {"weight": [0.5] * len(sequences), "name": ["a"] * len(sequences)}
    batch = nopad.PackedBatch.from_sequences(sequences, columns=columns)
    model = nopad.packed(build("bert"), backend="segments")
    with caplog.at_level("WARNING", logger="nopad"):
        model(**batch)
        model(**batch)
    assert [record.message for record in caplog.records] == [
        "BertModel takes no weight, name: these columns of the batch are not given to it"
    ]


def test_columns_that_a_wrapper_reads_itself_are_not_said_to_be_lost(sequences, caplog):
    class Scores(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = nopad.packed(build("bert"), backend="segments")

        def forward(self, **batch):
            return self.encoder(**batch).last_hidden_state.sum() * batch["weight"].sum()

    admission._say_left.cache_clear()
    batch = nopad.PackedBatch.from_sequences(sequences, columns={"weight": [0.5] * len(sequences)})
    with caplog.at_level("WARNING", logger="nopad"):
        Scores()(**batch)
    assert not caplog.records


def test_a_column_with_nearly_the_name_of_an_argument_is_no_slip(sequences):
    model = nopad.packed(build("bert", "sequence classification"))
    batch = nopad.PackedBatch.from_sequences(sequences, columns={"label": [0] * len(sequences)})
    with pytest.raises(BatchError, match="has a column 'label', and BertForSequenceClassification takes 'labels'"):
        model(**batch)
    kinds = {"token_type_id": [torch.zeros_like(s) for s in sequences]}
    with pytest.raises(BatchError, match="takes 'token_type_ids'; name it so, or leave it out of the call"):
        model(**nopad.PackedBatch.from_sequences(sequences, columns=kinds))
    both = nopad.PackedBatch.from_sequences(sequences, columns={n: [0] * len(sequences) for n in ("label", "labels")})
    assert torch.isfinite(model(**both).loss)
    text = nopad.PackedBatch.from_sequences(sequences, columns={"labels": ["a"] * len(sequences)})
    with pytest.raises(BatchError, match="column 'labels' holds no numbers"):
        model(**text)


@pytest.mark.parametrize("kind", ["bert", "llama", "deberta-v2"])
def test_attention_weights_are_refused(kind, sequences):
    model = nopad.packed(build(kind))
    batch = nopad.PackedBatch.from_sequences(sequences)
    says = "output_attentions was asked for, and attention on packs makes no matrix of weights"
    with pytest.raises(BatchError, match=says):
        model(**batch, output_attentions=True)
    if kind == "deberta-v2":  # whose own attention still runs where there are no packs
        alone = model(input_ids=sequences[0][None], output_attentions=True).attentions
        assert [tuple(weights.shape) for weights in alone] == [(1, 4, 7, 7)] * 2
    else:
        with pytest.raises(BatchError, match=says):
            model(input_ids=sequences[0][None], output_attentions=True)
    assert model(**batch, output_attentions=False).last_hidden_state.shape[1] == batch.layout.tokens
    nopad.unpacked(model).set_attn_implementation("eager")
    assert len(model(input_ids=sequences[0][None], output_attentions=True).attentions) == 2


class Around(torch.nn.Module):
    """A user's module around a model, with something scripted beside it."""

    def __init__(self, model):
        super().__init__()
        self.model, self.after = model, torch.jit.script(torch.nn.ReLU())

    def forward(self, **batch):
        return self.after(self.model(**batch).last_hidden_state)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.parametrize("where", ["inside", "around"])
def test_scripted_modules_are_refused_by_name(where):
    model = build("bert")
    if where == "inside":
        model.encoder.layer[0].intermediate.intermediate_act_fn = torch.jit.script(torch.nn.ReLU())
    else:
        model = Around(model)
    named = "after" if where == "around" else "encoder.layer.0.intermediate.intermediate_act_fn"
    with pytest.raises(UnsupportedModelError, match=f"^{named} is scripted or traced"):
        nopad.packed(model)


def test_models_with_one_configuration_object(batch, sequences):
    """The second found nopad's attention set, kept it for ever, and lost it with the first."""
    config = build("bert").config
    config._attn_implementation = "eager"
    first, second = t.BertModel(config).eval(), t.BertModel(config).eval()
    expected = [second(torch.tensor([list(one)])).last_hidden_state[0] for one in sequences]
    nopad.packed(first)
    nopad.packed(second)
    nopad.unpacked(first)
    for one, other in zip(batch.unpack_tokens(second(**batch).last_hidden_state), expected, strict=True):
        torch.testing.assert_close(one, other)
    assert nopad.unpacked(second)(torch.tensor([[3, 4]]), output_attentions=True).attentions
    assert config._attn_implementation == "eager"


@pytest.mark.skipif(Version(t.__version__) < Version("5.20"), reason="T5 takes no registered attention before 5.20")
def test_stacks_with_configurations_of_their_own_are_restored_too():
    """T5 copies its configuration for each stack, so only the whole model's is that of two models."""
    config = t.T5Config(d_model=8, d_ff=16, d_kv=4, num_layers=1, num_heads=2, vocab_size=50)
    models = [t.T5Model(config).eval() for _ in range(2)]
    before = config._attn_implementation
    for model in models:
        nopad.packed(model)
    for model in models:
        nopad.unpacked(model)
    found = {getattr(one, "config", config)._attn_implementation for model in models for one in model.modules()}
    assert found == {before}


def test_another_model_that_is_being_copied_is_no_hindrance():
    """Its state is there before its modules and configuration are."""
    config = build("bert").config
    other = state_of(nopad.packed(t.BertModel(config)))
    half = object.__new__(type(other))
    half.__setstate__({**other.__getstate__(), "model": t.BertModel.__new__(t.BertModel)})
    nopad.unpacked(nopad.packed(t.BertModel(config)))
