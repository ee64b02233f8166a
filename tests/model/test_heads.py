"""Which head a class has, and what a packed call gives: judged by each sequence alone on the stock model in float64."""

from __future__ import annotations

import copy
import functools

import pytest
import torch
import transformers as t
from torch import nn
from transformers.modeling_outputs import SequenceClassifierOutput, TokenClassifierOutput
from zoo import CONFIGS, FORMS, build, let, skip_where_unsupported

import nopad
from nopad.errors import BatchError, OptionError, UnsupportedModelError
from nopad.model import pooled

EXACT = 1e-12


@functools.cache
def own_class():
    """A class of one's own, which reads what a test says. (Made when first asked for: transformers takes a second.)"""

    class Own(t.BertPreTrainedModel):
        def __init__(self, config, read=lambda out: out.last_hidden_state[:, 0]):
            super().__init__(config)
            self.bert = t.BertModel(config)
            self.classifier = nn.Linear(config.hidden_size, 2)
            self.read = read
            self.post_init()

        def forward(self, input_ids=None, attention_mask=None, position_ids=None):
            out = self.bert(input_ids, attention_mask=attention_mask, position_ids=position_ids)
            return SequenceClassifierOutput(logits=self.classifier(self.read(out)))

    return Own


def own(name, *how):
    torch.manual_seed(0)
    return type(name, (own_class(),), {})(CONFIGS["bert"](), *how).double().eval()


def by_pooler(out):
    return out.pooler_output


def by_token(out):
    return out.last_hidden_state


def agrees(model, stock, sequences, form, name="logits"):
    """Hold a packed call against each sequence alone on another copy."""
    batch = nopad.PackedBatch.from_sequences(sequences, **FORMS[form])
    with torch.no_grad():
        result = model(**batch)[name]
        per_token = tuple(result.shape[:2]) == batch.layout.shape
        found = batch.unpack_tokens(result) if per_token else batch.unpack_sequences(result)
        for number, sequence in enumerate(sequences):
            wanted = stock(input_ids=sequence[None])[name][0]
            torch.testing.assert_close(found[number], wanted, atol=EXACT, rtol=0)


class TestByExactClass:
    @pytest.mark.parametrize(
        "name", ["MyModel", "MyForSequenceClassification", "BertModel", "BertForTokenClassification"]
    )
    def test_a_name_says_nothing(self, name):
        with pytest.raises(UnsupportedModelError, match=rf"nopad does not know the head of {name}: .*head=\.\.\."):
            nopad.packed(own(name), prove="never")

    def test_a_subclass_is_another_class(self):
        class Mine(t.BertForSequenceClassification):
            pass

        with pytest.raises(UnsupportedModelError, match="nopad does not know the head of Mine: "):
            nopad.packed(Mine(CONFIGS["bert"]()), prove="never")

    def test_what_is_refused_is_as_it_was(self):
        model = own("MyModel")
        with pytest.raises(UnsupportedModelError):
            nopad.packed(model, prove="never")
        assert model.config._attn_implementation == "sdpa"
        assert not any(module._forward_pre_hooks or module._forward_hooks for module in model.modules())

    @pytest.mark.parametrize(("name", "kind"), [("GPT2DoubleHeadsModel", "gpt2"), ("BertForMultipleChoice", "bert")])
    def test_classes_of_transformers_without_a_head_here(self, name, kind):
        with pytest.raises(UnsupportedModelError, match=f"nopad does not know the head of {name}: "):
            nopad.packed(getattr(t, name)(CONFIGS[kind]()))

    @pytest.mark.parametrize(
        ("name", "kind", "reason"),
        [
            ("BartForSequenceClassification", "bart", "a row's last end-of-sequence token"),
            ("T5ForSequenceClassification", "t5", "a row's last end-of-sequence token"),
            ("BartForCausalLM", "bart", "a decoder without its encoder"),
        ],
    )
    def test_encoder_decoders_that_read_rows(self, name, kind, reason):
        skip_where_unsupported(kind)
        with pytest.raises(UnsupportedModelError, match=f"{name} cannot run on packs: .*{reason}"):
            nopad.packed(getattr(t, name)(CONFIGS[kind]()))

    def test_unknown_and_other_heads(self):
        with pytest.raises(OptionError, match="unknown head 'x'; there are tokens, causal, classification, answers"):
            nopad.packed(own("Mine"), head="x")
        with pytest.raises(OptionError, match="the head of BertForMaskedLM is 'tokens', not 'causal'; leave it out"):
            nopad.packed(build("bert", "masked LM"), head="causal")

    def test_every_class_of_a_table_is_known(self):
        from nopad.model.families import FAMILIES
        from nopad.model.known import _tables, is_stock

        for kind in set(FAMILIES) & set(CONFIGS):
            for table in (t.MODEL_MAPPING, t.MODEL_FOR_MASKED_LM_MAPPING, t.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING):
                found = table.get(type(CONFIGS[kind]()), None)
                if found is not None:
                    assert is_stock(found)
                    assert found.__name__ in _tables()


class TestOwnClasses:
    """As their users say (`prove="never"`): each call is held against that."""

    @pytest.mark.parametrize("form", list(FORMS))
    def test_through_the_pooler(self, sequences, form):
        model = own("Mine", by_pooler)
        agrees(nopad.packed(model, head="classification", prove="never"), own("Mine", by_pooler), sequences, form)

    @pytest.mark.parametrize("form", list(FORMS))
    def test_per_token(self, sequences, form):
        agrees(
            nopad.packed(own("Mine", by_token), head="tokens", prove="never"), own("Mine", by_token), sequences, form
        )

    @pytest.mark.parametrize("kind", ["bert", "roberta", "deberta", "llama"])
    def test_positions_that_are_not_handed_on(self, sequences, kind):
        base = type(build(kind))

        class Mine(base):
            base_model_prefix = "inner"

            def __init__(self, config):
                t.PreTrainedModel.__init__(self, config)
                self.inner = base(config)

            def forward(self, input_ids, attention_mask=None):
                return self.inner(input_ids, attention_mask=attention_mask)

        torch.manual_seed(0)
        model = Mine(CONFIGS[kind]()).double().eval()
        stock = copy.deepcopy(model)
        agrees(nopad.packed(model, head="tokens", prove="never"), stock, sequences, "rows", "last_hidden_state")

    def test_positions_of_ones_own(self, sequences):
        class Mine(own_class()):
            def forward(self, input_ids=None, attention_mask=None):
                along = torch.arange(input_ids.shape[1])[None]
                return super().forward(input_ids, attention_mask, along)

        model = Mine(CONFIGS["bert"](), by_token).double().eval()
        with pytest.raises(UnsupportedModelError, match="is given position_ids that are not those of the batch"):
            nopad.packed(model, head="tokens", prove="never")(**nopad.PackedBatch.from_sequences(sequences[:4]))

    @pytest.mark.parametrize("head", ["tokens", "causal", "classification"])
    @pytest.mark.parametrize(
        "read", [lambda out: out.last_hidden_state[:, 0], lambda out: out.last_hidden_state.mean(1)]
    )
    def test_results_of_rows_are_no_results(self, sequences, head, read):
        model = nopad.packed(own("MyForSequenceClassification", read), head=head, prove="never")
        with pytest.raises(UnsupportedModelError, match=r"logits of .* has the shape \[1, 2\] and not \["):
            model(**nopad.PackedBatch.from_sequences(sequences[:4]))

    @pytest.mark.parametrize("how", [{"form": nopad.Rows(30, rows=3)}, FORMS["end to end"]])
    def test_as_many_rows_as_sequences(self, how):
        sequences = [[5] * 20, [6] * 10, [7] * 9] if how["form"].rows else [[5] * 40, [6] * 20]
        batch = nopad.PackedBatch.from_sequences(sequences, **how)
        assert batch.layout.shape[0] == batch.layout.sequences
        for read in (by_pooler, lambda out: out.last_hidden_state[:, 0]):
            with pytest.raises(BatchError, match=r"as many rows as sequences, [23], so results per row of a class"):
                nopad.packed(own("Mine", read), head="classification", prove="never")(**batch)

    def test_rows_as_wide_as_states(self):
        model = nopad.packed(own("Mine", by_pooler), head="tokens", prove="never")
        model.classifier = nn.Identity()
        with pytest.raises(BatchError, match="rows of this batch are 24 slots wide, as wide as states"):
            model(**nopad.PackedBatch.from_sequences([[5] * 20, [6] * 4]))

    def test_a_subclass_with_the_stock_head(self, sequences):
        class Mine(t.RobertaForSequenceClassification):
            pass

        torch.manual_seed(0)
        model = Mine(CONFIGS["roberta"]()).double().eval()
        stock = copy.deepcopy(model)
        agrees(nopad.packed(model, head="classification", prove="never"), stock, sequences, "rows")

    def test_a_subclass_that_pools_otherwise(self, sequences):
        class First(t.LlamaForSequenceClassification):
            def forward(self, *args, **kwargs):
                out = self.model(*args, **{k: v for k, v in kwargs.items() if k != "labels"})
                return SequenceClassifierOutput(logits=self.score(out.last_hidden_state)[:, 0])

        class Mean(t.DistilBertForSequenceClassification):
            def forward(self, input_ids=None, attention_mask=None, position_ids=None):
                out = self.distilbert(input_ids, attention_mask=attention_mask, position_ids=position_ids)
                states = torch.relu(self.pre_classifier(out.last_hidden_state.mean(1)))
                return SequenceClassifierOutput(logits=self.classifier(states))

        batch = nopad.PackedBatch.from_sequences(sequences)
        for kind, of in (("llama", First), ("distilbert", Mean)):
            with pytest.raises(UnsupportedModelError, match=r"nopad\.model\.pooled"):
                nopad.packed(of(CONFIGS[kind]()).double().eval(), head="classification", prove="never")(**batch)

    def test_nothing_to_feed(self):
        class Mine(t.BertPreTrainedModel):
            def __init__(self, config):
                super().__init__(config)
                self.bert = t.BertModel(config, add_pooling_layer=False)

        with pytest.raises(
            UnsupportedModelError, match="Mine has no part that nopad could hand each sequence's states"
        ):
            nopad.packed(Mine(CONFIGS["bert"]()), head="classification", prove="never")

    def test_tuples_and_tensors(self, sequences):
        class Tensor(own_class()):
            def forward(self, **inputs):
                return super().forward(**inputs).logits

        torch.manual_seed(0)
        model = Tensor(CONFIGS["bert"](), by_pooler).double().eval()
        found = nopad.packed(model, head="classification", prove="never")(**nopad.PackedBatch.from_sequences(sequences))
        assert found.shape == (8, 2)
        model = Tensor(CONFIGS["bert"](), lambda out: out.last_hidden_state[:, 0]).double().eval()
        nopad.packed(model, head="classification", prove="never")
        with pytest.raises(UnsupportedModelError, match=r"the result of Tensor has the shape \[1, 2\]"):
            model(**nopad.PackedBatch.from_sequences(sequences))

    def test_static_shapes_cannot_be_checked(self, sequences):
        from nopad.model import static_inputs

        batch = nopad.PackedBatch.from_sequences(sequences, **FORMS["rows"])
        model = nopad.packed(own("Mine", by_pooler), head="classification", prove="never", max_sequences=9)
        with pytest.raises(UnsupportedModelError, match="Mine is a class of your own, and what it hands on cannot be"):
            static_inputs(model, batch)
        assert model(**batch).logits.shape == (8, 2)


class TestValueHeads:
    """As TRL builds them: a value per token on a causal language model; a reward model is sequence classification."""

    class Valued(nn.Module):
        def __init__(self, model):
            super().__init__()
            self.pretrained_model, self.config = model, model.config
            torch.manual_seed(1)
            self.v_head = nn.Linear(24, 1).double()

        def forward(self, input_ids=None, attention_mask=None, **kwargs):
            out = self.pretrained_model(input_ids, attention_mask=attention_mask, output_hidden_states=True, **kwargs)
            return out.logits, out.loss, self.v_head(out.hidden_states[-1]).squeeze(-1)

    def test_the_wrapper_is_proven(self, sequences, tmp_path, monkeypatch):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        model, stock = self.Valued(build("llama", "causal LM")), self.Valued(build("llama", "causal LM"))
        nopad.packed(model)
        batch = nopad.PackedBatch.from_sequences(sequences, **FORMS["rows"])
        with torch.no_grad():
            values = batch.unpack_tokens(model(**batch)[2])
            for value, sequence in zip(values, sequences, strict=True):
                torch.testing.assert_close(value, stock(input_ids=sequence[None])[2][0], atol=EXACT, rtol=0)

    def test_the_wrapper_is_in_no_table(self):
        with pytest.raises(UnsupportedModelError, match=r"around LlamaForCausalLM, .*nopad\.packed\(model\.pretrained"):
            nopad.packed(self.Valued(build("llama", "causal LM")), prove="never")

    def test_the_model_inside_gives_values_per_token(self, sequences):
        model, stock = self.Valued(build("llama", "causal LM")), self.Valued(build("llama", "causal LM"))
        nopad.packed(model.pretrained_model)
        batch = nopad.PackedBatch.from_sequences(sequences, **FORMS["rows"])
        with torch.no_grad():
            values = batch.unpack_tokens(model(**batch)[2])
            for value, sequence in zip(values, sequences, strict=True):
                torch.testing.assert_close(value, stock(input_ids=sequence[None])[2][0], atol=EXACT, rtol=0)

    def test_a_reward_model(self, sequences):
        model, stock = (build("qwen3", "sequence classification", num_labels=1) for _ in range(2))
        agrees(nopad.packed(model), stock, sequences, "rows")


@pytest.mark.parametrize("kind", ["bart", "t5"])
@pytest.mark.parametrize("form", ["flat", "rows"])
def test_answers_of_a_decoder_lie_in_the_targets(kind, form, sequences):
    skip_where_unsupported(kind)
    torch.manual_seed(0)
    name = {"bart": "BartForQuestionAnswering", "t5": "T5ForQuestionAnswering"}[kind]
    model = getattr(t, name)(CONFIGS[kind]()).double().eval()
    stock = copy.deepcopy(model)
    targets = [sequence[:1].repeat(at + 2) for at, sequence in enumerate(sequences)]
    batch = nopad.PackedBatch.from_sequences(sequences, **FORMS[form]).with_decoder(targets, 2)
    del batch["labels"]
    starts, losses = torch.arange(8) % 2, []
    with torch.no_grad():
        found = nopad.packed(model)(**batch, start_positions=starts, end_positions=starts + 1)
        for at, (sequence, target) in enumerate(zip(sequences, targets, strict=True)):
            shifted = torch.cat([torch.tensor([2]), target[:-1]])[None]
            where = {"start_positions": starts[at : at + 1], "end_positions": starts[at : at + 1] + 1}
            alone = stock(input_ids=sequence[None], decoder_input_ids=shifted, **where)
            losses.append(alone.loss)
            for side in ("start_logits", "end_logits"):
                assert found[side].shape == (8, 9)
                torch.testing.assert_close(found[side][at, : at + 2], alone[side][0], atol=EXACT, rtol=0)
                assert torch.isneginf(found[side][at, at + 2 :]).all()
    torch.testing.assert_close(found.loss, torch.stack(losses).mean(), atol=EXACT, rtol=0)


@pytest.mark.parametrize("how", ["first", "last", "mean"])
@pytest.mark.parametrize("form", list(FORMS))
def test_pooling_in_the_open(sequences, form, how):
    batch = nopad.PackedBatch.from_sequences(sequences, **FORMS[form])
    torch.manual_seed(0)
    states = torch.randn(*batch.layout.shape, 3, dtype=torch.float64)
    found = pooled(states, batch, how)
    parts = batch.unpack_tokens(states)
    wanted = [{"first": part[0], "last": part[-1], "mean": part.mean(0)}[how] for part in parts]
    torch.testing.assert_close(found, torch.stack(wanted), atol=EXACT, rtol=0)


def test_pooling_refuses(sequences):
    batch = nopad.PackedBatch.from_sequences(sequences)
    with pytest.raises(OptionError, match="unknown pooling 'max'"):
        pooled(torch.zeros(1, 107, 3), batch, "max")
    with pytest.raises(
        BatchError, match=r"cannot pool states of shape \(8, 3\); expected one per slot.*\[1, 107, \.\.\.\]"
    ):
        pooled(torch.zeros(8, 3), batch)


class TestOutputs:
    def test_fewer_logits_than_tokens(self, sequences):
        model = nopad.packed(build("llama", "causal LM"))
        with pytest.raises(UnsupportedModelError, match=r"logits of LlamaForCausalLM has the shape \[1, 1, 99\]"):
            model(**nopad.PackedBatch.from_sequences(sequences), logits_to_keep=1)

    @pytest.mark.parametrize("head", ["pre-training", "next sentence", "base"])
    def test_every_output_is_held_against_its_kind(self, sequences, head):
        model = nopad.packed(build("bert", head))
        batch = nopad.PackedBatch.from_sequences(sequences)
        out = model(**batch, output_hidden_states=True)
        assert all(states.shape == (1, 107, 24) for states in out.hidden_states)
        name = {"pre-training": "seq_relationship_logits", "next sentence": "logits", "base": "pooler_output"}[head]
        assert out[name].shape[0] == 8

    def test_an_output_of_another_shape(self, sequences):
        model = nopad.packed(build("bert", "token classification"))
        inner = model.forward

        def cut(*args, **kwargs):
            return TokenClassifierOutput(logits=inner(*args, **kwargs).logits[:, 1:])

        model.forward = let(model, cut)
        with pytest.raises(UnsupportedModelError, match=r"logits of Bert.* the shape \[1, 106, 2\] and not \[1, 107"):
            model(**nopad.PackedBatch.from_sequences(sequences))


@pytest.mark.parametrize(
    ("kind", "part", "says"),
    [
        ("bert", "bert", "encoder of BertForSequenceClassification was to run once and ran 2 times"),
        ("bert", "bert.pooler", "pooler of BertForSequenceClassification was to run once and ran 2 times"),
        ("roberta", "classifier", "classifier of Roberta.* was to run once and ran 2 times"),
        ("llama", "model", "encoder of Llama.* was to run once and ran 2 times"),
    ],
)
def test_a_part_that_runs_twice(kind, part, says, sequences):
    """Which of its results the model takes, nobody knows."""
    model = nopad.packed(build(kind, "sequence classification"))
    run = model.get_submodule(part)
    above = model.get_submodule(part.rpartition(".")[0])
    inner, given = above.forward, []
    seen = let(model, lambda module, args, kwargs: given.append((args, kwargs)))
    run.register_forward_pre_hook(seen, with_kwargs=True, prepend=True)  # what transformers' own hands it

    def twice(*args, **kwargs):
        out = inner(*args, **kwargs)
        args, kwargs = given[0]
        run(*args, **kwargs)
        return out

    above.forward = let(model, twice)
    with pytest.raises(UnsupportedModelError, match=says):
        model(**nopad.PackedBatch.from_sequences(sequences))


class TestAttended:
    def batch(self, sequences):
        return nopad.PackedBatch.from_sequences(sequences)

    def test_a_layer_left_out(self, sequences):
        model = nopad.packed(build("bert"))
        model.encoder.layer[1].forward = let(model, lambda hidden_states, *args, **kwargs: hidden_states)
        with pytest.raises(
            UnsupportedModelError, match="asked nopad 1 times to keep sequences apart, and its configuration says 2"
        ):
            model(**self.batch(sequences))

    def test_a_layer_that_attends_twice(self, sequences):
        model = nopad.packed(build("bert"))
        inner = model.encoder.layer[1].forward
        model.encoder.layer[1].forward = let(
            model, lambda states, *args, **how: inner(inner(states, *args, **how), *args, **how)
        )
        with pytest.raises(
            UnsupportedModelError, match="asked nopad 3 times to keep sequences apart, and its configuration says 2"
        ):
            model(**self.batch(sequences))

    def test_a_layer_instead_of_another(self, sequences):
        model = nopad.packed(build("bert"))
        model.encoder.layer[1].forward = model.encoder.layer[0].forward
        with pytest.raises(UnsupportedModelError, match="1 of the BertSelfAttention modules of BertModel never asked"):
            model(**self.batch(sequences))

    def test_a_layer_that_attends_by_itself(self, sequences):
        model = nopad.packed(build("deberta"))
        inner = model.encoder.layer[0].attention.self
        inner.forward = let(model, lambda hidden_states, *args, **kwargs: (hidden_states, None))
        model(**self.batch(sequences))  # its hooks ran, and what it does is its own
        model.encoder.layer[0].attention.self = nn.Identity()
        model.encoder.layer[0].attention.forward = let(
            model, lambda hidden_states, *args, **kwargs: (hidden_states, None)
        )
        with pytest.raises(
            UnsupportedModelError, match="asked nopad 1 times to keep sequences apart, and its configuration says 2"
        ):
            model(**self.batch(sequences))

    def test_fewer_layers_that_the_configuration_tells(self, sequences):
        model, stock = build("bert"), build("bert")
        for one in (model, stock):
            one.encoder.layer = one.encoder.layer[:1]
        nopad.packed(model)
        with pytest.raises(UnsupportedModelError, match=r"say so in config\.num_hidden_layers"):
            model(**self.batch(sequences))
        model.config.num_hidden_layers = 1
        agrees(model, stock, sequences, "flat", "last_hidden_state")

    def test_layers_that_share_attention(self, sequences):
        model, stock = build("bert"), build("bert")
        for one in (model, stock):
            one.encoder.layer[1] = one.encoder.layer[0]
        agrees(nopad.packed(model), stock, sequences, "flat", "last_hidden_state")
        for changes in ({}, {"num_hidden_groups": 2}, {"inner_group_num": 2}):
            agrees(
                nopad.packed(build("albert", **changes)), build("albert", **changes), sequences, "rows", "pooler_output"
            )

    def test_layers_dropped_at_random(self, sequences):
        model = nopad.packed(build("opt", layerdrop=0.9))
        model.decoder.layerdrop = 0.9
        torch.manual_seed(0)
        for _ in range(4):
            assert model.train()(**self.batch(sequences)).last_hidden_state.shape == (1, 107, 24)

    def test_the_encoders_states_given(self, sequences):
        torch.manual_seed(0)
        model = t.BartModel(CONFIGS["bart"]()).double().eval()
        batch = nopad.PackedBatch.from_sequences(sequences).with_decoder([s[:2] for s in sequences], 2)
        del batch["labels"]
        with torch.no_grad():
            whole = nopad.packed(model)(**batch)
            given = model(**batch, encoder_outputs=(whole.encoder_last_hidden_state,))
        assert torch.equal(whole.last_hidden_state, given.last_hidden_state)


def test_a_model_of_sentence_transformers_is_sent_to_the_embedder():
    kind = type("SentenceTransformer", (nn.Sequential,), {"__module__": "sentence_transformers.base.model"})
    model = kind(build("bert"))
    model.config = model[0].config
    with pytest.raises(UnsupportedModelError, match=r"of sentence-transformers; nopad\.tasks\.Embedder\.from_folder"):
        nopad.packed(model)
