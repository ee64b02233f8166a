"""Losses of models of one's own: run on packs if they are what the sequences would give, else refused by name."""

from __future__ import annotations

import pytest
import torch
import transformers as t
from torch.nn.functional import cross_entropy

import nopad
from nopad.admitting.losses import check_numbers, why_no_labels
from nopad.errors import BatchError, UnsupportedModelError
from nopad.model import packed, static_inputs
from nopad.model.families import family_of

SIZES = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16, "vocab_size": 99}


def bert(kind, **more):
    torch.manual_seed(0)
    return kind(t.BertConfig(**{**SIZES, "num_labels": 5, **more})).double().eval()


def llama(kind):
    torch.manual_seed(0)
    return kind(t.LlamaConfig(**SIZES, num_key_value_heads=2, num_labels=3)).double().eval()


def why(model, head):
    line = family_of(model.config)
    return why_no_labels(model, head, lambda made: packed(made, head=head, family=line))


def mean(logits, labels):
    return cross_entropy(logits.flatten(0, 1), labels.flatten())


def smooth(logits):
    return (logits[:, 1:] - logits[:, :-1]).square().mean()


def of_sequences(logits, labels):
    each = cross_entropy(logits.transpose(1, 2), labels, reduction="none")
    return (each.sum(1) / (labels != -100).sum(1)).mean()


class Own(t.BertPreTrainedModel):
    """Tags tokens; its class attribute `loss` gives the loss."""

    def __init__(self, config):
        super().__init__(config)
        self.bert = t.BertModel(config, add_pooling_layer=False)
        self.out = torch.nn.Linear(config.hidden_size, 5)
        self.post_init()

    def states(self, input_ids, attention_mask, position_ids):
        return self.bert(input_ids, attention_mask=attention_mask, position_ids=position_ids).last_hidden_state

    def forward(self, input_ids, attention_mask=None, position_ids=None, labels=None):
        logits = self.out(self.states(input_ids, attention_mask, position_ids))
        return self.give(None if labels is None else self.loss(logits, labels), logits)

    def loss(self, logits, labels):
        return mean(logits, labels)

    def give(self, loss, logits):
        return {"loss": loss, "logits": logits}


def of(loss, how="dict"):
    def tupled(self, loss, logits):
        return (logits,) if loss is None else (loss, logits)

    def attribute(self, loss, logits):
        return t.modeling_outputs.TokenClassifierOutput(loss=loss, logits=logits)

    def last(self, loss, logits):
        return (logits,) if loss is None else (logits, loss)

    def called(self, loss, logits):
        return {"logits": logits, "negative_log": loss}

    give = {"dict": Own.give, "tuple": tupled, "attribute": attribute, "last": last, "called": called}[how]
    return type("Of", (Own,), {"loss": loss, "give": give, "__module__": __name__})


@pytest.mark.parametrize("how", ["dict", "tuple", "attribute", "last", "called"])
def test_a_mean_of_labels_is_admitted_wherever_it_is_in_the_output(how):
    assert why(bert(of(lambda self, logits, labels: mean(logits, labels), how)), "tokens") == ""
    shifted = of(lambda self, logits, labels: mean(logits[:, :-1], labels[:, 1:]), how)
    assert why(bert(shifted), "causal") == ""
    assert "of the kind 'causal', and its head was said to be 'tokens'" in why(bert(shifted), "tokens")
    assert why(bert(of(lambda self, logits, labels: None, how)), "tokens") == ""


OTHERS = {
    "means of sequences": lambda self, logits, labels: of_sequences(logits, labels),
    "neighbours": lambda self, logits, labels: mean(logits, labels) + smooth(logits),
    "neighbours in training": lambda self, logits, labels: mean(logits, labels) + self.training * smooth(logits),
    "gradient": lambda self, logits, labels: mean(logits, labels) + smooth(logits) - smooth(logits).detach(),
    "ignored labels": lambda self, logits, labels: cross_entropy(
        logits.flatten(0, 1), labels.flatten(), reduction="none"
    ).mean(),
    "of each token": lambda self, logits, labels: cross_entropy(logits.transpose(1, 2), labels, reduction="none"),
    "in training": lambda self, logits, labels: mean(logits, labels) if self.training else None,
    "raises": lambda self, logits, labels: [][0],
}


@pytest.mark.parametrize("how", ["dict", "tuple", "attribute"])
@pytest.mark.parametrize("loss", OTHERS)
def test_other_losses_per_token_are_refused(loss, how):
    assert why(bert(of(OTHERS[loss], how)), "tokens").startswith(("its loss ", "with labels, it "))


class Divided(Own):
    power = 1

    def forward(self, input_ids, attention_mask=None, position_ids=None, labels=None, num_items_in_batch=None):
        found = super().forward(input_ids, attention_mask, position_ids, labels)
        if num_items_in_batch is not None:
            total = cross_entropy(found["logits"].flatten(0, 1), labels.flatten(), reduction="sum")
            found["loss"] = total / num_items_in_batch**self.power
        return found


class DividedTwice(Divided):
    power = 2


def test_a_loss_is_divided_by_the_number_of_labels_that_a_trainer_gives():
    assert why(bert(Divided), "tokens") == ""
    assert why(bert(DividedTwice), "tokens").startswith("its loss on packs is not the mean cross entropy of all labels")


class Weighted(t.BertForSequenceClassification):
    penalty = 0.0

    def forward(self, input_ids, attention_mask=None, position_ids=None, labels=None):
        found = self.bert(input_ids, attention_mask=attention_mask, position_ids=position_ids)
        logits = self.classifier(found.pooler_output)
        weight = torch.tensor([1.0, 5.0, 0.2], dtype=logits.dtype)
        loss = None if labels is None else cross_entropy(logits, labels, weight, label_smoothing=0.1)
        if self.penalty and labels is not None:
            loss = loss + self.penalty * found.last_hidden_state.mean(1).square().mean()
        return {"loss": loss, "logits": logits}


class Penalised(Weighted):
    penalty = 0.5


class WeightedInFloat32(Weighted):
    """As most write it: it raises an error in float64."""

    def forward(self, input_ids, attention_mask=None, position_ids=None, labels=None):
        logits = super().forward(input_ids, attention_mask, position_ids)["logits"]
        weight = torch.nn.CrossEntropyLoss(weight=torch.tensor([1.0, 5.0, 0.2]))
        loss = None if labels is None else weight(logits.view(-1, 3), labels.view(-1))
        return {"loss": loss, "logits": logits}


def test_weights_in_float32():
    assert why(bert(WeightedInFloat32, num_labels=3), "classification") == ""


def test_sparse_gradients_of_a_table():
    model = bert(of(lambda self, logits, labels: mean(logits, labels)), vocab_size=5000)
    model.bert.embeddings.word_embeddings.sparse = True
    assert why(model, "tokens") == ""


class Focal(t.LlamaForSequenceClassification):
    def forward(self, input_ids=None, attention_mask=None, position_ids=None, labels=None):
        found = super().forward(input_ids=input_ids, attention_mask=attention_mask, position_ids=position_ids)
        if labels is not None:
            likely = found.logits.softmax(-1).gather(1, labels[:, None])
            found["loss"] = -((1 - likely).square() * likely.log()).mean()
        return found


class SameLlamaForSequenceClassification(t.LlamaForSequenceClassification):
    pass


class Answers(t.BertForQuestionAnswering):
    times = 1

    def forward(self, input_ids, attention_mask=None, position_ids=None, start_positions=None, end_positions=None):
        found = super().forward(input_ids, attention_mask=attention_mask, position_ids=position_ids)
        if start_positions is not None:
            losses = [
                cross_entropy(found[f"{one}_logits"], at)
                for one, at in (("start", start_positions), ("end", end_positions))
            ]
            found["loss"] = (losses[0] + self.times * losses[1]) / 2
        return found


class Doubled(Answers):
    times = 2


@pytest.mark.parametrize(
    ("model", "head", "admitted"),
    [
        (lambda: bert(Weighted, num_labels=3), "classification", True),
        (lambda: bert(Penalised, num_labels=3), "classification", False),
        (lambda: llama(SameLlamaForSequenceClassification), "classification", True),
        (lambda: llama(Focal), "classification", False),
        (lambda: bert(Answers, num_labels=2), "answers", True),
        (lambda: bert(Doubled, num_labels=2), "answers", False),
    ],
)
def test_losses_per_sequence_are_those_of_a_batch_of_rows_or_refused(model, head, admitted):
    said = why(model(), head)
    assert said == "" if admitted else said.startswith("its loss on packs is not that of a batch of the same sequences")


class SelfSupervised(Own):
    def forward(self, input_ids, attention_mask=None, position_ids=None):
        logits = self.out(self.states(input_ids, attention_mask, position_ids))
        return {"logits": logits, "reward": self.number(logits)}

    def number(self, logits):
        return smooth(logits)


class Balanced(SelfSupervised):
    def number(self, logits):
        return logits.softmax(-1).mean((0, 1)).square().sum()


def test_numbers_of_a_whole_batch_must_not_cross_borders():
    def make(model):
        return packed(model, head="tokens", family=family_of(model.config))

    check_numbers(bert(Balanced), make)
    with pytest.raises(
        UnsupportedModelError, match=r"reward of SelfSupervised is one number of the whole batch, and on"
    ):
        check_numbers(bert(SelfSupervised), make)
    rows = nopad.PackedBatch.from_sequences([[5, 6], [7]], form=nopad.Rows(4))
    with pytest.raises(BatchError, match=r"reward of Balanced, .* has 1 slots of padding, which may count in it"):
        make(bert(Balanced))(**rows)


class Asked(Own):
    """Takes more than a proof gives, and mixes the tokens of a row by it."""

    def forward(
        self,
        input_ids,
        attention_mask=None,
        token_type_ids=None,
        position_ids=None,
        labels=None,
        tags=None,
        centre=False,
    ):
        states = self.states(input_ids, attention_mask, position_ids)
        if tags is not None or centre:
            states = states - states.mean(1, keepdim=True)
        return self.give(None if labels is None else of_sequences(self.out(states), labels), self.out(states))


def test_arguments_that_no_proof_covers_are_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for _ in range(2):  # proven, and remembered
        model = nopad.packed(bert(Asked))
        columns = {"labels": [[1, 2], [3]], "tags": [[1, 0], [0]]}
        batch = nopad.PackedBatch.from_sequences([[5, 6], [7]], columns=columns)
        with pytest.raises(
            BatchError, match=r"^labels were given, and the proof of Asked was without them: its loss on"
        ):
            model(**{name: one for name, one in batch.items() if name != "tags"})
        del batch["labels"]
        with pytest.raises(
            BatchError, match=r"tags was given, and the proof of Asked was without it, .* name it labels"
        ):
            model(**batch)
        del batch["tags"]
        with pytest.raises(BatchError, match="centre was given, and the proof of Asked was without it"):
            model(**batch, centre=True)
        assert model(**batch, centre=False)["logits"].shape == (1, 3, 5)


class ByGradients(Own):
    def states(self, *given):
        found = super().states(*given)
        return found - found.mean(1, keepdim=True) if self.training and torch.is_grad_enabled() else found


def test_code_that_runs_only_where_gradients_are_recorded_is_seen():
    with pytest.raises(UnsupportedModelError, match="in training"):
        nopad.packed(bert(ByGradients), prove="always")


def test_a_loss_function_of_ones_own_in_a_model_of_transformers():
    model = bert(t.BertForMaskedLM)
    model.loss_function = lambda logits, labels, **more: of_sequences(logits, labels)
    batch = nopad.PackedBatch.from_sequences([[5, 6], [7]], columns={"labels": [[5, 6], [7]]})
    with pytest.raises(BatchError, match=r"labels were given, and loss_function of this BertForMaskedLM is your own"):
        nopad.packed(model)(**batch)
    rows = nopad.PackedBatch.from_sequences([[5, 6], [7]], nopad.Rows(4), columns={"labels": [[5, 6], [7]]})
    with pytest.raises(BatchError, match="labels were given, and loss_function"):
        static_inputs(model, rows)
    del batch["labels"]
    assert model(**batch).logits.shape == (1, 3, 99)
