"""What a user gets wrong in a packed call is said in our words, with the sequence, before the model runs."""

from __future__ import annotations

import re

import pytest
import torch
from zoo import AUTO, CONFIGS, build, has_head

import nopad
from nopad import PackedBatch, Rows
from nopad.errors import BatchError, OptionError
from nopad.model import static_inputs
from nopad.model.arguments import _classes

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
            "labels are torch.float64 of the shape [3], and there are 3 classes",
        ),
        ("sequence classification", [True, False, True], "labels are torch.bool; expected numbers of classes"),
        ("token classification", [[0, 1, 3], [2], [1, 1]], "labels[0, 2] is 3; there are 3 classes"),
        ("masked LM", [[5, 6, 700], [8], [9, 10]], "labels[0, 2] is 700; there are 99 classes"),
        ("masked LM", [[0.5, 6, 7], [8.0], [9.0, 10]], "labels are torch.float64; expected numbers of classes"),
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
    with pytest.raises(BatchError, match=r"start_positions are torch.float64; expected places in the sequence"):
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
        assert _classes(model) == logits.shape[-1]
