"""What a user gets wrong in a packed call is said in our words, with the sequence, before the model runs."""

from __future__ import annotations

import re

import pytest
import torch
import transformers
from kinds import tiny
from zoo import AUTO, CONFIGS, build, has_head

import nopad
from nopad import PackedBatch, Rows
from nopad.errors import BatchError, OptionError
from nopad.model import static_inputs
from nopad.model.arguments import classes_of

SEQUENCES = [[5, 6, 7], [8], [9, 10]]


def call(head, columns=None, kind="bert", **changes):
    """Call a packed model on a batch with these columns, or with these arguments changed."""
    how = {"num_labels": 3} if "classification" in head else {}
    model = nopad.packed(build(kind, head, **how))
    return model(**{**PackedBatch.from_sequences(SEQUENCES, columns=columns), **changes})


def test_ids_beyond_the_vocabulary():
    model = nopad.packed(build("bert"))
    with pytest.raises(BatchError, match="input_ids hold 99 at place 1 of sequence 2, and the model has 99 tokens"):
        model(**PackedBatch.from_sequences([[5], [6], [7, 99, 8]]))
    with pytest.raises(BatchError, match="input_ids hold -1 at place 0 of sequence 1, and the model has 99 tokens"):
        model(**PackedBatch.from_sequences([[5, 6, 7], [-1], [7, 99]], Rows(4)))
    with pytest.raises(BatchError, match=r"input_ids hold 1000 at padding \(pad_id\), and the model has 99 tokens"):
        model(**PackedBatch.from_sequences([[5, 6, 7]], Rows(4), pad_id=1000))
    with pytest.raises(BatchError, match="token_type_ids hold 7 at place 1 of sequence 1, and the model has 2 token"):
        model(**PackedBatch.from_sequences([[5], [6, 7]], columns={"token_type_ids": [[0], [0, 7]]}))
    limited = nopad.packed(build("bert"), max_sequences=4)
    with pytest.raises(BatchError, match="input_ids hold 99 at place 0 of sequence 1"):
        static_inputs(limited, PackedBatch.from_sequences([[5, 6], [99]], Rows(4)))


@pytest.mark.parametrize(
    ("head", "labels", "says"),
    [
        ("sequence classification", [0, 1, 3], "labels[2] is 3; there are 3 classes, from 0"),
        ("sequence classification", [0, -1, 2], "labels[1] is -1; there are 3 classes"),
        (
            "sequence classification",
            [0.5, 1.0, 2.0],
            "labels are torch.float32 of the shape [3], and there are 3 classes",
        ),
        ("sequence classification", [True, False, True], "labels are torch.bool; expected numbers of classes"),
        ("token classification", [[0, 1, 3], [2], [1, 1]], "labels[0, 2] is 3; there are 3 classes"),
        ("masked LM", [[5, 6, 700], [8], [9, 10]], "labels[0, 2] is 700; there are 99 classes"),
        ("masked LM", [[0.5, 6, 7], [8.0], [9.0, 10]], "labels are torch.float32; expected numbers of classes"),
        ("causal LM", [[5, 6, 99], [8], [9, 10]], "labels[0, 2] is 99; there are 99 classes"),
        ("next sentence", [0, 1, 2], "labels[2] is 2; there are 2 classes"),
    ],
)
def test_labels_that_are_no_class(head, labels, says):
    with pytest.raises(BatchError, match=re.escape(says)):
        call(head, {"labels": labels}, kind="llama" if head == "causal LM" else "bert")


def test_labels_of_a_decoders_classifier():
    with pytest.raises(BatchError, match=r"labels\[2\] is 7; there are 3 classes"):
        call("sequence classification", {"labels": [0, 1, 7]}, kind="llama")
    several = {"labels": torch.ones(3, 3, dtype=torch.long)}
    with pytest.raises(BatchError, match=r"or floats \[S, 3\] \(sequence_columns of from_sequences\) for several"):
        call("sequence classification", **several)
    assert call("sequence classification", labels=torch.ones(3, 3, dtype=torch.double)).loss.isfinite()
    assert call("sequence classification", {"labels": [0, -100, 2]}).loss.isfinite()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"input_ids": [[5, 6]]}, "input_ids are of type list; expected a tensor of integers [1, 6]"),
        ({"input_ids": torch.zeros(1, 6)}, "input_ids are torch.float32 of the shape [1, 6]"),
        ({"input_ids": None}, "no input_ids were given; the batch is laid out in [1, 6]"),
        ({"inputs_embeds": torch.zeros(1, 6, 24)}, "input_ids and inputs_embeds were both given"),
        ({"input_ids": None, "inputs_embeds": torch.zeros(1, 6)}, "expected a tensor [1, 6, 24]"),
        ({"input_ids": None, "inputs_embeds": torch.zeros(1, 6, 5)}, "expected a tensor [1, 6, 24]"),
        (
            {"token_type_ids": torch.zeros(1, 3).long()},
            "token_type_ids have the shape (1, 3); the batch is laid out in (1, 6)",
        ),
        ({"token_type_ids": torch.zeros(3).long()}, "token_type_ids have the shape (3,); the batch"),
        ({"position_ids": torch.zeros(1, 3).long()}, "position_ids have the shape (1, 3); the batch"),
        (
            {"position_ids": torch.full((1, 6), 200)},
            "position_ids hold 200 at slot 0 of row 0, and by its layout the batch has 0 there",
        ),
    ],
)
def test_arguments_that_do_not_fit(changes, says):
    with pytest.raises(BatchError, match=re.escape(says)):
        call("base", **changes)


def test_answers_are_places():
    places = {"start_positions": [0.0, 0.0, 0.0], "end_positions": [0, 0, 0]}
    with pytest.raises(BatchError, match=r"start_positions are torch.float32; expected places in the sequence"):
        call("question answering", places)


@pytest.mark.parametrize("kind", ["t5", "bart"])
def test_targets_that_do_not_fit(kind):
    model = nopad.packed(build(kind, "conditional generation"))
    source = PackedBatch.from_sequences(SEQUENCES)
    batch = source.with_decoder([[1], [1], [2, 3]], 0)
    with pytest.raises(
        BatchError, match=r"decoder_input_ids have the shape \(1, 3\); the batch is laid out in \(1, 4\)"
    ):
        model(**{**batch, "decoder_input_ids": torch.ones(1, 3, dtype=torch.long)})
    with pytest.raises(BatchError, match="decoder_input_ids hold 2000 at place 1 of sequence 2"):
        model(**source.with_decoder([[1], [1], [2000, 3]], 0))
    with pytest.raises(BatchError, match=r"labels\[0, 3\] is 2000; there are 99 classes"):
        model(**source.with_decoder([[1], [1], [3, 2000]], 0))
    with pytest.raises(
        BatchError, match="target 1 holds -100, which is no token: give targets without padding, and set"
    ):
        source.with_decoder([[1, 2], [3, -100], [2]], 0)
    for odd, says in (([[1.5], [1], [2]], "targets must be integers"), (None, "targets are of type NoneType")):
        with pytest.raises(BatchError, match=says):
            source.with_decoder(odd, 0)
    with pytest.raises(OptionError, match="start_id is None; it is a token"):
        source.with_decoder([[1], [1], [2]], None)


@pytest.mark.parametrize("kind", [kind for kind in CONFIGS if kind not in ("t5", "bart")])
@pytest.mark.parametrize("head", ["masked LM", "causal LM", "token classification", "pre-training"])
def test_as_many_classes_as_a_head_gives(kind, head):
    if not has_head(kind, head):
        pytest.skip(f"transformers has no {AUTO[head]} of this kind")
    model = build(kind, head, **({"num_labels": 5} if head == "token classification" else {}))
    with torch.no_grad():
        output = model(input_ids=torch.tensor([[5, 6]]))
    logits = output.get("logits", output.get("prediction_logits"))
    if logits.dim() == 3:  # ELECTRA's pre-training is a yes or no per token
        assert classes_of(model) == logits.shape[-1]


class TestOneForEachSlot:
    """What a stock model takes once per row is no per-sequence argument, whatever shape a batch happens to have."""

    @pytest.mark.parametrize("form", [nopad.Flat(), Rows(8, rows=3), Rows(8, rows=3, end_to_end=True)])
    def test_languages(self, form):
        model = nopad.packed(transformers.XmodModel(tiny("xmod", languages=["en_XX", "de_DE"])))
        batch = PackedBatch.from_sequences(SEQUENCES, form, columns={"lang_ids": [0, 1, 0]})
        with pytest.raises(
            BatchError, match=r"lang_ids are torch.int64 of the shape \[3\], which XmodModel would read"
        ):
            model(**batch)

    @pytest.mark.parametrize("name", ["input_ids", "token_type_ids", "position_ids", "labels"])
    def test_on_another_device(self, name):
        columns = {"token_type_ids": [[0] * len(s) for s in SEQUENCES], "labels": SEQUENCES}
        batch = PackedBatch.from_sequences(SEQUENCES, columns=columns)
        with pytest.raises(BatchError, match=f"{name} are on meta and the model on cpu"):
            nopad.packed(build("bert", "masked LM"))(**{**batch, name: batch[name].to("meta")})

    @pytest.mark.parametrize("kind", ["roberta", "mpnet", "distilbert", "llama", "bart"])
    def test_positions_of_ones_own(self, kind):
        batch = PackedBatch.from_sequences(SEQUENCES)
        if kind == "bart":
            batch = batch.with_decoder(SEQUENCES, 2)
        model = nopad.packed(build(kind, "conditional generation" if kind == "bart" else "base"))
        model(**{**batch, "position_ids": batch["position_ids"].clone()})
        with pytest.raises(
            BatchError, match="position_ids hold 3 at slot 1 of row 0, and by its layout the batch has 1"
        ):
            model(**{**batch, "position_ids": batch["position_ids"] * 3})

    def test_the_mask_of_another_batch(self):
        batch = PackedBatch.from_sequences(SEQUENCES)
        other = PackedBatch.from_sequences(SEQUENCES[::-1])
        with pytest.raises(BatchError, match="position_ids hold 2 at slot 2 of row 0"):
            nopad.packed(build("bert"))(**{**batch, "attention_mask": other["attention_mask"]})

    def test_weights_that_are_nowhere(self):
        with pytest.raises(BatchError, match="weights of this BertModel are on no device"):
            nopad.packed(build("bert").to("meta"))(**PackedBatch.from_sequences(SEQUENCES))

    def test_embeddings_for_a_model_that_takes_none(self):
        model = nopad.packed(transformers.CLIPTextModel(tiny("clip_text_model")))
        batch = dict(PackedBatch.from_sequences(SEQUENCES))
        batch["inputs_embeds"] = model.get_input_embeddings()(batch.pop("input_ids"))
        with pytest.raises(BatchError, match="CLIPTextModel takes no inputs_embeds; give input_ids"):
            model(**batch)

    def test_labels_that_are_shifted_already(self):
        shifted = [[*s[1:], -100] for s in SEQUENCES]
        with pytest.raises(BatchError, match="shift_labels were given, and a pack-safe model shifts labels by itself"):
            call("causal LM", {"labels": SEQUENCES, "shift_labels": shifted}, "llama")


@pytest.mark.parametrize("dtype", [torch.int32, torch.int16, torch.uint8])
@pytest.mark.parametrize(
    ("kind", "head", "labels"),
    [
        ("bert", "masked LM", SEQUENCES),
        ("llama", "causal LM", SEQUENCES),
        ("bert", "sequence classification", [0, 1, 2]),
        ("llama", "sequence classification", [0, 1, 2]),
    ],
)
def test_labels_of_any_integers(kind, head, labels, dtype):
    batch = PackedBatch.from_sequences(SEQUENCES, columns={"labels": labels})
    wanted = call(head, {"labels": labels}, kind).loss
    assert torch.equal(call(head, kind=kind, labels=batch["labels"].to(dtype)).loss, wanted)


def test_arguments_of_a_class_of_ones_own():
    """One per sequence, or one for all: results of such classes are told from those of rows."""

    class Scaled(transformers.BertForSequenceClassification):
        def forward(self, input_ids=None, attention_mask=None, position_ids=None, scale=None, shift=None):
            out = super().forward(input_ids=input_ids, attention_mask=attention_mask, position_ids=position_ids)
            out["logits"] = out.logits * scale[:, None] + shift
            return out

    stock = build("bert", "sequence classification")
    model = Scaled(stock.config).double().eval()
    model.load_state_dict(stock.state_dict())
    wanted = [stock(input_ids=torch.tensor([s])).logits[0] * n + 5 for n, s in enumerate(SEQUENCES)]
    nopad.packed(model, head="classification", prove="never")
    shift = torch.tensor([5.0])
    batch = PackedBatch.from_sequences(SEQUENCES, columns={"scale": [0.0, 1.0, 2.0]})
    torch.testing.assert_close(model(**batch, shift=shift).logits, torch.stack(wanted), atol=1e-12, rtol=0)
    with pytest.raises(BatchError, match=r"scale are .* of the shape \[2\], which Scaled would read once per row"):
        model(**{**batch, "scale": batch["scale"][:2]}, shift=shift)


class TestStaticShapes:
    def test_what_does_not_go_with_them(self):
        model = nopad.packed(build("llama", "causal LM"))
        given = static_inputs(model, PackedBatch.from_sequences(SEQUENCES, Rows(4), columns={"labels": SEQUENCES}))
        model(**given)
        with pytest.raises(BatchError, match="num_items_in_batch was given to a call of static shapes"):
            model(**given, num_items_in_batch=torch.tensor(6))
        with pytest.raises(BatchError, match="past_key_values hold earlier tokens of rows"):
            model(**given, past_key_values=transformers.DynamicCache())
        with pytest.raises(BatchError, match=r"has the shape \[2, 1, 1, 4\], and tokens have \[2, 3\]"):
            model(**{**given, "input_ids": given["input_ids"][:, :3]})
        model(**given)

    def test_a_mask_of_ones_own_is_no_sequence_numbers(self):
        ids = torch.tensor([[5, 6, 7]])
        with pytest.raises(BatchError, match="so give your own masks as bool"):
            nopad.packed(build("llama"))(input_ids=ids, attention_mask=torch.ones(1, 1, 3, 3, dtype=torch.int32))

    def test_no_batch(self):
        with pytest.raises(BatchError, match="the batch is of type dict; expected the PackedBatch"):
            static_inputs(nopad.packed(build("bert")), dict(PackedBatch.from_sequences(SEQUENCES, Rows(4))))


@pytest.mark.parametrize("how", [{"backend": ["mask"]}, {"backend": None}, {"head": ["tokens"]}, {"head": 5}])
def test_options_of_another_type(how):
    with pytest.raises(OptionError, match=f"unknown {next(iter(how))}"):
        nopad.packed(build("bert"), **how)
