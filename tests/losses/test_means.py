"""Losses of packs against the same sequences one by one: value and gradient."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn.functional import cross_entropy

import nopad
from nopad.errors import BatchError, OptionError
from nopad.losses import (
    sequence_denominator,
    sequence_loss,
    span_denominator,
    span_loss,
    token_denominator,
    token_loss,
)
from nopad.tasks import OfTokens

LENGTHS = [7, 1, 12, 3, 5]
CLASSES = 11
FORMS = [{"form": nopad.Flat()}, {"form": nopad.Rows(13)}, {"form": nopad.Rows(9, end_to_end=True)}]


def values_of_each():
    """Logits and labels of each sequence; about a third of the labels count for nothing, all of one sequence's."""
    generator = torch.Generator().manual_seed(0)
    logits = [torch.randn(n, CLASSES, generator=generator, dtype=torch.float64) for n in LENGTHS]
    labels = [torch.randint(0, CLASSES, (n,), generator=generator) for n in LENGTHS]
    for label in labels:
        label[torch.rand(label.shape, generator=generator) < 0.3] = -100
    labels[3][:] = -100
    labels[0][0] = 4
    return logits, labels


@pytest.fixture
def data():
    return values_of_each()


def one_by_one(logits, labels, per, causal, weights):
    """(sum, denominator) over sequences, as the definition says."""
    total, count = torch.zeros((), dtype=torch.float64), 0.0
    for logit, label, weight in zip(logits, labels, weights, strict=True):
        if causal:
            logit, label = logit[:-1], label[1:]
        real = label != -100
        if not real.any():
            continue
        each = cross_entropy(logit[real], label[real], reduction="sum")
        n = int(real.sum())
        total = total + weight * (each / n if per == "sequence" else each)
        count += weight * (1 if per == "sequence" else n)
    return total, count


def laid_out(batch, values, fill):
    stream = torch.cat([values[number] for number in batch.layout.order.tolist()])
    rows = torch.full((batch.layout.slots, *stream.shape[1:]), fill, dtype=stream.dtype)
    rows[torch.from_numpy(batch.layout.index)] = stream
    return rows.reshape(*batch.layout.shape, *stream.shape[1:])


@pytest.mark.parametrize("form", FORMS, ids=["flat", "rows", "end to end"])
@pytest.mark.parametrize("per", ["token", "sequence"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_equal_to_one_by_one(data, form, per, causal, weighted):
    logits, labels = data
    batch = nopad.PackedBatch.from_sequences([[1] * n for n in LENGTHS], **form)
    given = torch.tensor([0.5, 2.0, 1.0, 3.0, 0.25], dtype=torch.float64) if weighted else None
    weights = [1.0] * len(LENGTHS) if given is None else given.tolist()
    leaves = [logit.clone().requires_grad_() for logit in logits]
    total, count = one_by_one(leaves, labels, per, causal, weights)
    (total / count).backward()
    packed_logits = laid_out(batch, logits, 7.0).requires_grad_()  # whatever stands in padding counts for nothing
    packed_labels = laid_out(batch, labels, 3)
    how = {"per": per, "causal": causal, "weights": given}
    loss = token_loss(packed_logits, packed_labels, batch, **how)
    loss.backward()
    torch.testing.assert_close(loss, total.detach() / count, atol=1e-12, rtol=0)
    assert float(token_denominator(packed_labels, batch, **how)) == pytest.approx(count)
    for part, leaf in zip(batch.unpack_tokens(packed_logits.grad), leaves, strict=True):
        torch.testing.assert_close(
            part, leaf.grad if leaf.grad is not None else torch.zeros_like(leaf), atol=1e-12, rtol=0
        )


@pytest.mark.parametrize("per", ["token", "sequence"])
def test_accumulated_steps_are_exact(data, per):
    logits, labels = data
    total, count = one_by_one(logits, labels, per, True, [1.0] * len(LENGTHS))
    parts = []
    for numbers in ([0, 1], [2, 3, 4]):
        batch = nopad.PackedBatch.from_sequences([[1] * LENGTHS[n] for n in numbers], form=nopad.Rows(20))
        chosen = ([values[n] for n in numbers] for values in (logits, labels))
        parts.append((*(laid_out(batch, values, 0) for values in chosen), batch))
    whole = sum(token_denominator(label, batch, per=per, causal=True) for _, label, batch in parts)
    losses = [token_loss(*part, per=per, causal=True, denominator=whole) for part in parts]
    torch.testing.assert_close(sum(losses), total / count, atol=1e-12, rtol=0)


def test_default_is_transformers_own(data):
    from transformers.loss.loss_utils import ForCausalLMLoss

    logits, labels = data
    longest = max(LENGTHS)
    rows = torch.zeros(len(LENGTHS), longest, CLASSES, dtype=torch.float64)
    padded = torch.full((len(LENGTHS), longest), -100)
    for row, (logit, label) in enumerate(zip(logits, labels, strict=True)):
        rows[row, : len(label)], padded[row, : len(label)] = logit, label
    batch = nopad.PackedBatch.from_sequences([[1] * n for n in LENGTHS])
    found = token_loss(laid_out(batch, logits, 0), laid_out(batch, labels, -100), batch, causal=True)
    wanted = ForCausalLMLoss(rows.float(), padded, CLASSES)
    torch.testing.assert_close(found.float(), wanted, atol=1e-6, rtol=0)


def test_refusals():
    batch = nopad.PackedBatch.from_sequences([[1, 2], [3]])
    logits, labels = torch.zeros(1, 3, 4), torch.zeros(1, 3, dtype=torch.long)
    with pytest.raises(BatchError, match=r"labels have the shape \[3\]; expected \[1, 3\], one per slot"):
        token_loss(logits, labels[0], batch)
    with pytest.raises(BatchError, match=r"logits have the shape \[3, 1, 4\]; expected \[1, 3, C\]"):
        token_loss(logits.reshape(3, 1, 4), labels, batch)
    with pytest.raises(BatchError, match=r"weights have the shape \[3\]; expected \[2\], one per sequence"):
        token_loss(logits, labels, batch, weights=torch.ones(3))
    with pytest.raises(OptionError, match="unknown per 'pack'; it is 'token' or 'sequence'"):
        token_loss(logits, labels, batch, per="pack")


def labels_of(kind: str) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(5, 1 if kind == "regression" else 4, generator=generator, dtype=torch.float64)
    labels = {
        "single": torch.tensor([0, 3, 1, 1, 2]),
        "several": torch.randint(0, 2, (5, 4), generator=generator).double(),
        "regression": torch.randn(5, generator=generator, dtype=torch.float64),
    }
    return logits, labels[kind]


@pytest.mark.parametrize(
    ("kind", "problem"),
    [
        ("single", "single_label_classification"),
        ("several", "multi_label_classification"),
        ("regression", "regression"),
    ],
)
def test_loss_of_sequences_is_transformers_own(kind, problem):
    from types import SimpleNamespace

    from transformers.loss.loss_utils import ForSequenceClassificationLoss

    logits, labels = labels_of(kind)
    config = SimpleNamespace(problem_type=problem, num_labels=logits.shape[1])
    wanted = ForSequenceClassificationLoss(labels, logits, config)
    torch.testing.assert_close(sequence_loss(logits, labels), wanted, atol=1e-12, rtol=0)
    weights = torch.tensor([1.0, 0.0, 2.0, 0.5, 3.0])
    each = [float(sequence_loss(logits[at : at + 1], labels[at : at + 1])) for at in range(5)]
    found = float(sequence_loss(logits, labels, weights=weights))
    assert found == pytest.approx(sum(w * e for w, e in zip(weights.tolist(), each, strict=True)) / 6.5, abs=1e-12)
    whole = sequence_denominator(labels)
    parts = sum(sequence_loss(logits[at], labels[at], denominator=whole) for at in (slice(0, 1), slice(1, 5)))
    torch.testing.assert_close(parts, wanted, atol=1e-12, rtol=0)


def test_sequences_without_a_label_do_not_count():
    logits, labels = labels_of("single")
    labels[[1, 4]] = -100
    assert sequence_denominator(labels).item() == 3
    kept = [0, 2, 3]
    torch.testing.assert_close(sequence_loss(logits, labels), sequence_loss(logits[kept], labels[kept]))


def test_loss_of_answers_is_the_models_own():
    from tests.model.zoo import build

    model = nopad.packed(build("bert", "question answering"))
    sequences = [[2, *range(5, 5 + n), 3] for n in LENGTHS]
    starts, ends = torch.tensor([1, 0, 9, 400, 2]), torch.tensor([3, 1, 9, 401, 2])  # one answer was cut off
    batch = nopad.PackedBatch.from_sequences(
        sequences,
        columns={"start_positions": starts.tolist(), "end_positions": ends.tolist()},
        form=nopad.Rows(20),
    )
    out = model(**batch)
    given = out.start_logits, out.end_logits, batch["start_positions"], batch["end_positions"], batch
    torch.testing.assert_close(span_loss(*given), out.loss, atol=1e-12, rtol=0)
    assert span_denominator(*given[2:]).item() == 4
    each = cross_entropy(out.start_logits[2:3], starts[2:3]) + cross_entropy(out.end_logits[2:3], ends[2:3])
    alone = torch.zeros(5).index_fill(0, torch.tensor(2), 1.0)  # weights are in the order given
    torch.testing.assert_close(span_loss(*given, weights=alone), each / 2, atol=1e-12, rtol=0)
    halves = [torch.tensor([1.0, 1, 0, 0, 0]), torch.tensor([0.0, 0, 1, 1, 1])]
    whole = span_denominator(*given[2:])
    parts = sum(span_loss(*given, weights=half, denominator=whole) for half in halves)
    torch.testing.assert_close(parts, out.loss, atol=1e-12, rtol=0)


def test_refusals_of_sequences():
    batch = nopad.PackedBatch.from_sequences([[1, 2], [3]])
    with pytest.raises(BatchError, match=r"logits have the shape \[2\]; expected \[S, C\]"):
        sequence_loss(torch.zeros(2), torch.zeros(2))
    with pytest.raises(BatchError, match=r"labels have the shape \[3\]; expected \[2\]"):
        sequence_loss(torch.zeros(2, 3), torch.zeros(3, dtype=torch.long))
    with pytest.raises(BatchError, match="which is regression, and there are 3 logits per sequence"):
        sequence_loss(torch.zeros(2, 3), torch.zeros(2))
    with pytest.raises(BatchError, match=r"weights have the shape \[3\]; expected \[2\]"):
        sequence_loss(torch.zeros(2, 3), torch.zeros(2, dtype=torch.long), weights=torch.ones(3))
    places = torch.zeros(2, dtype=torch.long)
    with pytest.raises(BatchError, match=r"start_logits have the shape \[2, 1\]; expected \[2, 2\]"):
        span_loss(torch.zeros(2, 1), torch.zeros(2, 2), places, places, batch)
    with pytest.raises(BatchError, match=r"ends have the shape \[3\]; expected \[2\]"):
        span_loss(torch.zeros(2, 2), torch.zeros(2, 2), places, torch.zeros(3, dtype=torch.long), batch)


def test_regression_with_a_dimension_of_one_is_no_classification():
    logits, labels = torch.tensor([[1.0], [2.0], [4.0]]), torch.tensor([[0.0], [2.0], [-100.0]])
    assert sequence_loss(logits, labels).item() == pytest.approx((1 + 0 + 104**2) / 3)
    assert sequence_denominator(labels[:, 0]).item() == 3  # any float is a target
    with pytest.raises(BatchError, match="labels are integers, and there is one logit per sequence; give floats"):
        sequence_loss(logits, torch.tensor([2, 3, 4]))


@pytest.mark.parametrize("denominator", [None, 3.0, torch.tensor(3.0, dtype=torch.float64)])
def test_half_precision_is_widened(denominator):
    generator = torch.Generator().manual_seed(5)
    logits = torch.randn(1, 3, 50, generator=generator).bfloat16()
    batch, labels = nopad.PackedBatch.from_sequences([[1, 2], [3]]), torch.tensor([[4, 9, 30]])
    wanted = cross_entropy(logits[0].double(), labels[0])
    for per in ("token", "sequence") if denominator is None else ("token",):
        found = token_loss(logits, labels, batch, per=per, denominator=denominator)
        assert found.dtype == torch.float32
    torch.testing.assert_close(
        token_loss(logits, labels, batch, denominator=denominator).double(), wanted, atol=1e-6, rtol=0
    )


def test_what_has_no_weight_may_be_infinite():
    logits = torch.zeros(1, 3, 4)
    logits[0, 0, 1] = -torch.inf
    batch = nopad.PackedBatch.from_sequences([[1], [2, 3]])
    found = token_loss(logits, torch.tensor([[1, 2, 3]]), batch, weights=torch.tensor([0.0, 1.0]))
    assert found.item() == pytest.approx(float(torch.tensor(4.0).log()))


@pytest.mark.parametrize("options", [{}, {"per": "sequence"}, {"causal": True}, {"smoothing": 0.3}, {"dynamic": True}])
@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.6, 1.0])
def test_equal_however_many_tokens_are_labelled(share, options):
    """Where most tokens have no label, their logits are not read; loss and gradient stay the same."""
    generator = torch.Generator().manual_seed(2)
    batch = nopad.PackedBatch.from_sequences([[1] * n for n in (20, 30, 50)])
    logits = torch.randn(1, 100, CLASSES, generator=generator, dtype=torch.float64).requires_grad_()
    labels = torch.randint(0, CLASSES, (1, 100), generator=generator)
    labels[torch.rand(labels.shape, generator=generator) >= share] = -100
    loss = token_loss(logits, labels, batch, denominator=7.0, **options)

    numbers = torch.from_numpy(batch.layout.sequence_ids[0]).long()
    total = torch.zeros((), dtype=torch.float64)
    for number in (1, 2, 3):
        mine = labels[0, numbers == number]
        scores = torch.log_softmax(logits[0, numbers == number], -1)
        if options.get("causal"):
            mine, scores = mine[1:], scores[:-1]
        for score, label in zip(scores, mine, strict=True):
            if label < 0:
                continue
            smooth = options.get("smoothing", 0.0)
            one = -(1 - smooth) * score[label] - smooth * score.mean()
            one = one * score[label].exp().detach() if "dynamic" in options else one
            total = total + one / (int((mine >= 0).sum()) if "per" in options else 1)
    assert abs(float(loss.detach()) - float(total.detach()) / 7) < 1e-12
    found = torch.autograd.grad(loss, logits)[0]
    wanted = torch.autograd.grad(total / 7, logits)[0] if total.requires_grad else torch.zeros_like(logits)
    assert (found - wanted).abs().max() < 1e-12


def test_unlabelled_tokens_among_few_labels_may_be_nan():
    """No NaN of a token without a label reaches the loss, or the gradient of any token."""
    logits = torch.zeros(1, 4, 3)
    logits[0, 2] = torch.nan
    logits.requires_grad_()
    batch = nopad.PackedBatch.from_sequences([[1, 2], [3, 4]])
    loss = token_loss(logits, torch.tensor([[1, -100, -100, 2]]), batch)
    loss.backward()
    assert loss.item() == pytest.approx(math.log(3))
    assert not logits.grad[0, 1:3].any()
    assert logits.grad.isfinite().all()


def test_answers_in_static_shapes():
    batch = nopad.PackedBatch.from_sequences([[1, 2], [3]])
    narrow = torch.tensor([[0.5, 1.0], [2.0, -torch.inf]])
    wide = torch.nn.functional.pad(narrow, (0, 5), value=-torch.inf)
    places = torch.tensor([1, 0])
    torch.testing.assert_close(
        span_loss(wide, wide, places, places, batch), span_loss(narrow, narrow, places, places, batch)
    )


def test_labels_that_are_no_classes():
    batch = nopad.PackedBatch.from_sequences([[1, 2], [3]])
    logits = torch.zeros(1, 3, 4)
    wanted = token_loss(logits, torch.tensor([[1, 2, 3]]), batch)
    assert torch.equal(token_loss(logits, torch.tensor([[1, 2, 3]], dtype=torch.int32), batch), wanted)
    for dtype in (torch.float32, torch.bool):
        with pytest.raises(BatchError, match=f"labels are {dtype}; expected numbers of classes, integers"):
            token_loss(logits, torch.ones(1, 3, dtype=dtype), batch)


def test_what_is_no_loss_is_said_in_our_words():
    batch = nopad.PackedBatch.from_sequences([[1, 2], [3]])
    logits, labels = torch.zeros(1, 3, 4), torch.zeros(1, 3, dtype=torch.long)
    says = r"labels\[0, 1\] is 9; there are 4 classes, from 0, and -100 is where nothing is to be learnt"
    with pytest.raises(BatchError, match=says):
        token_loss(logits, torch.tensor([[1, 9, -100]]), batch)
    with pytest.raises(BatchError, match=r"labels\[2\] is -1; there are 4 classes"):
        sequence_loss(torch.zeros(3, 4), torch.tensor([1, -100, -1]))
    for odd in (logits[..., 0], torch.zeros(1, 3, 0), torch.zeros(1, 4, 4)):
        with pytest.raises(BatchError, match=r"expected \[1, 3, C\], C classes per slot"):
            token_loss(odd, labels, batch)
    with pytest.raises(BatchError, match="logits are of type ndarray; expected a torch tensor"):
        token_loss(logits.numpy(), labels, batch)
    with pytest.raises(BatchError, match="labels are of type list; expected a torch tensor"):
        sequence_loss(torch.zeros(3, 4), [1, 2, 3])
    with pytest.raises(BatchError, match="weights are of type list; expected a torch tensor"):
        token_loss(logits, labels, batch, weights=[1, 1])
    with pytest.raises(BatchError, match="the batch is of type dict; expected the PackedBatch"):
        token_loss(logits, labels, dict(batch))
    with pytest.raises(BatchError, match=r"the denominator is a Tensor of shape \[3\]; expected one number"):
        token_loss(logits, labels, batch, denominator=torch.ones(3))
    with pytest.raises(BatchError, match="the denominator is a str; expected one number"):
        token_loss(logits, labels, batch, denominator="mean")
    with pytest.raises(BatchError, match=r"labels are torch.bool; expected numbers of classes"):
        sequence_loss(torch.zeros(2, 3), torch.tensor([True, False]))
    places = torch.zeros(2, dtype=torch.int32)
    assert torch.isfinite(span_loss(torch.zeros(2, 2), torch.zeros(2, 2), places, places, batch))
    assert torch.isfinite(sequence_loss(torch.zeros(2, 3), places))
    with pytest.raises(BatchError, match=r"starts are torch.float32; expected places in the sequence"):
        span_loss(torch.zeros(2, 2), torch.zeros(2, 2), places.float(), places, batch)


class TestTensorsThatDoNotFit:
    batch = nopad.PackedBatch.from_sequences([[1, 2, 3], [4]])
    labels = torch.tensor([[1, 2, 3, 4]])

    def test_logits_that_are_no_floats(self):
        with pytest.raises(BatchError, match=r"logits are torch\.int64; expected floating-point numbers"):
            token_loss(torch.zeros(1, 4, 8).long(), self.labels, self.batch)
        with pytest.raises(BatchError, match=r"logits are torch\.int64"):
            sequence_loss(torch.zeros(2, 8).long(), torch.tensor([1, 2]))

    @pytest.mark.parametrize("which", [0, 1, 2])
    def test_other_devices(self, which):
        given = [torch.zeros(1, 4, 8), self.labels, torch.ones(2)]
        given[which] = given[which].to("meta")
        with pytest.raises(BatchError, match=r"there are .* on .*; expected one device"):
            token_loss(given[0], given[1], self.batch, weights=given[2])

    @pytest.mark.parametrize(
        ("labels", "says"),
        [
            (torch.tensor(1.0), r"the shape \[\]; expected floats \[S\] or \[S, C\]"),
            (torch.zeros(2, 3, 4), r"the shape \[2, 3, 4\]; expected floats"),
            (torch.zeros(2, 2, dtype=torch.long), r"the shape \[2, 2\]; expected integers \[S\]"),
        ],
    )
    def test_labels_that_are_not_one_per_sequence(self, labels, says):
        with pytest.raises(BatchError, match=says):
            sequence_denominator(labels)

    def test_logits_that_are_one_number(self):
        with pytest.raises(BatchError, match="logits"):
            sequence_loss(torch.tensor(1.0), torch.zeros(2, 1))

    def test_spans_on_another_device(self):
        logits, places = torch.zeros(2, 3), torch.zeros(2, dtype=torch.long)
        with pytest.raises(BatchError, match=r"there are start_logits on meta.*; expected one device"):
            span_loss(logits.to("meta"), logits.to("meta"), places, places, self.batch)

    def test_a_denominator_of_some_dimensions_gives_one_number(self):
        logits = torch.zeros(1, 4, 8)
        wanted = token_loss(logits, self.labels, self.batch, denominator=3.0)
        assert torch.equal(token_loss(logits, self.labels, self.batch, denominator=torch.tensor([[3.0]])), wanted)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"smoothing": 0.1, "dynamic": True}, "smoothing and dynamic are two losses; give one of them"),
        ({"smoothing": 1.5}, "smoothing is 1.5; it is a number from 0 to 1"),
        ({"smoothing": True}, "smoothing is True"),
        ({"smoothing": math.nan}, "smoothing is nan; it is a finite number from 0 to 1"),
        ({"smoothing": "0.1"}, "smoothing is '0.1'"),
    ],
)
def test_smoothing_that_cannot_be_is_refused_by_the_loss_and_by_its_objective(options, told):
    batch = nopad.PackedBatch.from_sequences([[1, 2]])
    with pytest.raises(OptionError, match=told):
        token_loss(torch.zeros(1, 2, 8), torch.tensor([[1, 2]]), batch, **options)
    with pytest.raises(OptionError, match=told):
        OfTokens(**options)


@pytest.mark.parametrize("options", [{"smoothing": 0.3}, {"dynamic": True}])
def test_smoothed_and_dynamic_losses_by_their_formulas(data, options):
    """Of sequences one by one, in value and gradient."""
    logits, labels = data
    batch = nopad.PackedBatch.from_sequences([[1] * n for n in LENGTHS])
    joined = torch.cat(logits)[None].requires_grad_()
    token_loss(joined, torch.cat(labels)[None], batch, causal=True, **options).backward()
    alone = torch.cat(logits).requires_grad_()
    total, count, begin = 0, 0, 0
    for n, label in zip(LENGTHS, labels, strict=True):
        shares = torch.log_softmax(alone[begin : begin + n], -1)
        for at in range(1, n):
            if label[at] >= 0:
                mine = shares[at - 1]
                if "dynamic" in options:
                    total = total - mine[label[at]] * mine[label[at]].exp().detach()
                else:
                    total = total - 0.7 * mine[label[at]] - 0.3 * mine.mean()
                count += 1
        begin += n
    (total / count).backward()
    assert (joined.grad[0] - alone.grad).abs().max() < 1e-14
    found = token_loss(joined, torch.cat(labels)[None], batch, causal=True, **options)
    assert abs(found.item() - (total / count).item()) < 1e-12


NARROW = [torch.uint8, torch.uint16, torch.uint32, torch.int16, torch.int32]  # 156 is what -100 is in uint8


@pytest.mark.parametrize("dtype", NARROW)
def test_labels_of_any_integers_count_as_the_same_labels_in_int64(dtype):
    labels = torch.tensor([156, 3])
    logits = torch.randn(2, 200, generator=torch.manual_seed(0))
    assert torch.equal(sequence_loss(logits, labels.to(dtype)), sequence_loss(logits, labels))
    assert sequence_denominator(labels.to(dtype)).item() == 2
    batch = nopad.PackedBatch.from_sequences([[1], [2]])
    wanted = token_loss(logits[None], labels[None], batch)
    assert torch.equal(token_loss(logits[None], labels[None].to(dtype), batch), wanted)
    places = torch.zeros(2, dtype=dtype)
    assert torch.isfinite(span_loss(logits, logits, places, places, batch))


@pytest.mark.parametrize("dtype", [torch.uint64, torch.bool])
def test_labels_that_int64_does_not_hold_are_refused_by_losses_and_denominators(dtype):
    labels = torch.ones(2, dtype=dtype)
    for refused in (lambda: sequence_loss(torch.zeros(2, 3), labels), lambda: sequence_denominator(labels)):
        with pytest.raises(BatchError, match=f"labels are {dtype}; expected numbers of classes, integers up to int64"):
            refused()


def test_labels_of_a_regression_whose_logits_are_one_number():
    with pytest.raises(BatchError, match=r"logits have the shape \[\]; expected \[S, C\], a row for each sequence"):
        sequence_loss(torch.tensor(1.0), torch.ones(1))


@pytest.mark.parametrize(
    ("odd", "kind"),
    [
        (lambda one: one.to_sparse(), "torch.sparse_coo"),
        (lambda one: one.to(torch.complex64), "torch.complex64"),
        (lambda one: torch.quantize_per_tensor(one.float(), 1.0, 0, torch.qint8), "torch.qint8"),
        (lambda one: torch.nested.nested_tensor([one]), "nested"),
    ],
)
@pytest.mark.parametrize("name", ["logits", "labels", "weights", "denominator"])
@pytest.mark.filterwarnings("ignore")  # torch's own, on kinds of tensors that it will change
def test_tensors_that_arithmetic_cannot_take_whole_are_refused(odd, kind, name):
    given = {"logits": torch.ones(2, 3), "labels": torch.ones(2).long(), "weights": torch.ones(2)}
    given |= {"denominator": torch.ones(1)}
    given[name] = odd(given[name])
    says = f"{name} are {kind}; expected a dense tensor of real numbers"
    if name == "denominator":
        says = "the denominator is a Tensor, not dense or not of real numbers; expected one number"
    with pytest.raises(BatchError, match=says):
        sequence_loss(given["logits"], given["labels"], weights=given["weights"], denominator=given["denominator"])
