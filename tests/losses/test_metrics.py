"""Metrics of packs against the same sequences one by one, and over batches against all at once."""

from __future__ import annotations

import math

import pytest
import torch
from tests.losses.test_means import FORMS, LENGTHS, laid_out, values_of_each

import nopad
from nopad.errors import BatchError, OptionError
from nopad.losses import Accuracy, Confusion, Spans, best_spans


@pytest.mark.parametrize("form", FORMS, ids=["flat", "rows", "end to end"])
@pytest.mark.parametrize("causal", [False, True])
def test_accuracy_is_that_of_each_alone(form, causal):
    logits, labels = values_of_each()
    right, known = [], []
    for logit, label in zip(logits, labels, strict=True):
        if causal:
            logit, label = logit[:-1], label[1:]
        right.append(int(((logit.argmax(-1) == label) & (label != -100)).sum()))
        known.append(int((label != -100).sum()))
    batch = nopad.PackedBatch.from_sequences([[1] * n for n in LENGTHS], **form)
    rows = laid_out(batch, logits, 9.0), laid_out(batch, labels, 3)
    per_token, per_sequence = Accuracy(), Accuracy("sequence")
    for accuracy in (per_token, per_sequence):
        accuracy.add(*rows, batch, causal=causal)
    assert per_token.value == pytest.approx(sum(right) / sum(known))
    shares = [r / k for r, k in zip(right, known, strict=True) if k]
    assert per_sequence.value == pytest.approx(sum(shares) / len(shares))
    assert per_token.value != pytest.approx(per_sequence.value)  # the data tells them apart


def test_accuracy_of_batches_is_that_of_all():
    logits, labels = values_of_each()
    whole, parts = Accuracy("sequence"), Accuracy("sequence")
    for numbers, accuracy in (([0, 1, 2, 3, 4], whole), ([0], parts), ([1, 2, 3], parts), ([4], parts)):
        batch = nopad.PackedBatch.from_sequences([[1] * LENGTHS[number] for number in numbers])
        accuracy.add(*(torch.cat([side[number] for number in numbers])[None] for side in (logits, labels)), batch)
    torch.testing.assert_close(whole.counts, parts.counts)


def test_nothing_counted_is_no_number():
    assert math.isnan(Accuracy().value)
    assert math.isnan(Confusion(3).accuracy)
    assert math.isnan(Spans().exact)


def test_f1_by_its_definition():
    generator = torch.Generator().manual_seed(1)
    logits, labels = torch.randn(60, 4, generator=generator), torch.randint(0, 3, (60,), generator=generator)
    labels[::7] = -100
    confusion = Confusion(4)
    confusion.add(logits[:20], labels[:20])
    confusion.add(logits[20:].reshape(4, 10, 4), labels[20:].reshape(4, 10))  # tokens of rows
    known = labels != -100
    guess, wanted = logits.argmax(1)[known], labels[known]
    assert confusion.accuracy == pytest.approx(float((guess == wanted).double().mean()))
    each = []
    for label in range(4):
        hit = float(((guess == label) & (wanted == label)).sum())
        precision = hit / max(1.0, float((guess == label).sum()))
        recall = hit / max(1.0, float((wanted == label).sum()))
        each.append(2 * precision * recall / (precision + recall) if hit else 0.0)
        assert confusion.f1(label) == pytest.approx(each[-1])
    assert confusion.f1() == pytest.approx(sum(each) / 4)


def test_spans_share_of_tokens():
    spans = Spans()
    spans.add(*(torch.tensor([side]) for side in (2, 5, 4, 9)))  # 2 of 4 and of 6 tokens in common
    assert (spans.exact, spans.f1) == (0.0, pytest.approx(2 * 2 / (4 + 6)))
    spans.add(*(torch.tensor([side]) for side in (0, 1, 3, 4)))  # none
    spans.add(*(torch.tensor([side]) for side in (7, 7, 7, 7)))
    assert (spans.exact, spans.f1) == (pytest.approx(1 / 3), pytest.approx((0.4 + 0 + 1) / 3))


def test_empty_and_unknown_answers():
    spans = Spans()
    spans.add(*(torch.tensor(side) for side in ([4, 5, 1], [3, 6, 1], [3, 5, -100], [2, 6, -100])))
    assert (spans.exact, spans.f1) == (0.5, 0.5)  # the last has no answer; the first two are empty


@pytest.mark.parametrize("longest", [1, 3, 30])
def test_best_span_is_the_best_of_all_that_are_allowed(longest):
    generator = torch.Generator().manual_seed(2)
    lens = [6, 1, 9]
    start, end = torch.randn(2, 3, 9, generator=generator)
    for row, n in enumerate(lens):
        start[row, n:] = end[row, n:] = -torch.inf
    starts, ends = best_spans(start, end, longest)
    for row, n in enumerate(lens):
        allowed = [(i, j) for i in range(n) for j in range(i, min(n, i + longest))]
        assert (int(starts[row]), int(ends[row])) == max(
            allowed, key=lambda span: float(start[row, span[0]] + end[row, span[1]])
        )


def test_bad_input_is_named():
    batch = nopad.PackedBatch.from_sequences([[1, 2, 3]])
    with pytest.raises(OptionError, match="unknown per 'row'"):
        Accuracy("row")
    with pytest.raises(BatchError, match=r"logits have the shape \[1, 2, 8\]; expected \[1, 3, C\]"):
        Accuracy().add(torch.zeros(1, 2, 8), torch.zeros(1, 3, dtype=torch.long), batch)
    with pytest.raises(BatchError, match=r"logits have the shape \[2, 3\]; expected \[2, 4\]"):
        Confusion(4).add(torch.zeros(2, 3), torch.zeros(2, dtype=torch.long))
    with pytest.raises(BatchError, match=r"labels\[0\] is 7; there are 4 classes"):
        Confusion(4).add(torch.zeros(1, 4), torch.tensor([7]))
    with pytest.raises(BatchError, match="expected one shape"):
        Spans().add(torch.zeros(2), torch.zeros(2), torch.zeros(2), torch.zeros(3))
    with pytest.raises(OptionError, match="longest must be an integer from 1"):
        best_spans(torch.zeros(1, 2), torch.zeros(1, 2), 0)


def test_what_cannot_be_counted_is_said_in_our_words():
    batch = nopad.PackedBatch.from_sequences([[1, 2], [3]])
    labels = torch.full((1, 3), -100)
    for odd in (torch.zeros(1, 3, 0), torch.zeros(1, 3)):
        with pytest.raises(BatchError, match=r"expected \[1, 3, C\], C classes per slot"):
            Accuracy().add(odd, labels, batch)
    for odd in (0, -1, 2.5):
        with pytest.raises(OptionError, match="classes must be an integer from 1"):
            Confusion(odd)
    with pytest.raises(OptionError, match="label is 7; there are 2 classes, from 0"):
        Confusion(2).f1(7)
    with pytest.raises(BatchError, match=r"labels are torch.float32; expected numbers of classes"):
        Confusion(2).add(torch.zeros(3, 2), torch.zeros(3))
    with pytest.raises(BatchError, match="starts are of type list; expected a torch tensor"):
        Spans().add([1], [1], [1], [1])
    for sides in ((torch.zeros(3, 0),) * 2, (torch.zeros(3, 4), torch.zeros(3, 5)), (torch.zeros(3),) * 2):
        with pytest.raises(BatchError, match=r"start_logits and end_logits have the shapes .*; expected \[S, L\] both"):
            best_spans(*sides)
    with pytest.raises(OptionError, match="longest must be an integer from 1"):
        best_spans(torch.zeros(3, 4), torch.zeros(3, 4), longest=2.5)


def test_longer_answers_than_there_are_tokens_cost_nothing():
    start, end = torch.randn(3, 7), torch.randn(3, 7)
    for mine, wanted in zip(best_spans(start, end, 10**9), best_spans(start, end, 7), strict=True):
        assert torch.equal(mine, wanted)


def test_answers_of_whole_numbers_and_classes_of_text():
    with pytest.raises(BatchError, match=r"start_logits are torch\.int64; expected floating-point numbers"):
        best_spans(torch.zeros(1, 3).long(), torch.zeros(1, 3).long())
    with pytest.raises(OptionError, match="label is 'a'; there are 2 classes"):
        Confusion(2).f1("a")
    with pytest.raises(OptionError, match="label is True"):
        Confusion(2).f1(True)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.uint16, torch.int32])
def test_metrics_of_any_integers_are_those_of_int64(dtype):
    """In uint8, -100 is class 156, and an answer that ends before it begins had 254 tokens."""
    labels, guesses = torch.tensor([156, 3]), torch.tensor([156, 4])
    confusion = Confusion(200)
    confusion.add(torch.nn.functional.one_hot(guesses, 200).float(), labels.to(dtype))
    assert confusion.counts[156, 156] == 1
    assert confusion.counts.sum() == 2
    spans = Spans()
    spans.add(*(torch.tensor(side, dtype=dtype) for side in ([5, 3], [2, 4], [1, 3], [2, 5])))
    assert spans.exact == 0
    assert spans.f1 == pytest.approx((0 + 2 * 2 / 5) / 2)
