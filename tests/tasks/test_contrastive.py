"""Contrastive training: packed against each text alone, two processes against one, and what is no negative."""

from __future__ import annotations

import math

import pytest
import torch
import torch.distributed as dist
from tests.leaving import leave
from tests.tasks.equality import check_equal
from tests.tasks.tiny import bert, llama, tokenizer, words

import nopad
from nopad.errors import BatchError, LengthError, OptionError, RecordError
from nopad.tasks import Contrastive, InBatch, predict

COUNT = 9


def records(negatives=0, count=COUNT):
    generator = torch.Generator().manual_seed(5)

    def text():
        return words(generator, int(torch.randint(1, 12, (1,), generator=generator)))

    made = [{"anchor": text(), "positive": text()} for _ in range(count)]
    for one in made:
        if negatives:
            one["negative"] = text() if negatives == 1 else [text() for _ in range(negatives)]
    made[3]["positive"] = made[1]["positive"]  # no negative of record 1
    made[4]["anchor"] = made[2]["anchor"]  # whose positives answer both
    if negatives == 1:
        made[5]["negative"] = made[6]["positive"]
    return made


def vectors_alone(model, texts, pooling, normalize):
    found = []
    for text in texts:
        ids = torch.tensor(tokenizer()(text)["input_ids"])[None]
        states = model(input_ids=ids).last_hidden_state[0]
        vector = {"mean": states.mean(0), "first": states[0], "last": states[-1]}[pooling]
        found.append(vector / vector.norm() if normalize else vector)
    return found


def judged(model, made, task):
    """The loss of records as one batch, written out over pairs of texts, with gradients."""
    model.zero_grad()
    objective = task.objective
    texts = [[one["anchor"], one["positive"]] for one in made]
    against = [one.get("negative", []) for one in made]
    against = [[one] if isinstance(one, str) else one for one in against]
    sides = [vectors_alone(model, side, objective.pooling, objective.normalize) for side in zip(*texts, strict=True)]
    flat = [text for one in against for text in one]
    hard = vectors_alone(model, flat, objective.pooling, objective.normalize)
    mask = objective.same == "mask"

    def entropy(own, candidates):
        scores = torch.stack([objective.scale * (own @ vector) for vector in candidates])
        return scores.logsumexp(0) - scores[0]

    total = 0
    for i, (anchor, positive) in enumerate(texts):
        taken = [sides[1][i]]
        for j, (other, candidate) in enumerate(texts):
            if j != i and not (mask and (candidate in (positive, anchor) or other == anchor)):
                taken.append(sides[1][j])
        taken += [v for text, v in zip(flat, hard, strict=True) if not (mask and text in (anchor, positive))]
        each = entropy(sides[0][i], taken)
        if objective.symmetric:
            back = [sides[0][i]]
            for j, (other, candidate) in enumerate(texts):
                if j != i and not (mask and (other in (anchor, positive) or candidate == positive)):
                    back.append(sides[0][j])
            each = (each + entropy(sides[1][i], back)) / 2
        total = total + each
    (total / len(made)).backward()
    return (total / len(made)).item(), {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


def stepped(model, task, batches):
    """Loss and gradients of batches as one step."""
    model.zero_grad()
    nopad.packed(model)
    try:
        whole, loss = sum(task.objective.count(batch) for batch in batches), 0.0
        for batch in batches:
            one, _ = task.objective.step(model, batch, whole)
            one.backward()
            loss += one.item()
    finally:
        nopad.unpacked(model)
    return loss, {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


def encoder(task, build=bert):
    options = {"add_pooling_layer": False} if build is bert else {}
    model = build(task, "BertModel" if build is bert else "LlamaModel")
    if options:
        model.pooler = None
    return model


OPTIONS = [
    {},
    {"symmetric": True},
    {"same": "keep"},
    {"same": "keep", "symmetric": True},
    {"pooling": "first", "scale": 3.5},
    {"pooling": "last", "normalize": False, "scale": 0.1},
]


@pytest.mark.parametrize("negatives", [0, 1, 2])
@pytest.mark.parametrize("options", OPTIONS)
def test_a_packed_step_is_that_of_each_text_alone(options, negatives):
    task = Contrastive(tokenizer(), **options)
    made = records(negatives)
    model = encoder(task)
    examples = task.encode(made)
    [batch] = task.loader(examples, 64, rows=COUNT * 4, last="fill")
    assert (examples.group, len(examples)) == (2 + negatives, COUNT * (2 + negatives))
    check_equal(judged(model, made, task), stepped(model, task, [batch]))


def test_models_that_read_to_the_left():
    task = Contrastive(tokenizer(), pooling="last")
    model, made = encoder(task, llama), records(1)
    examples = task.encode(made)
    examples.sequences.tokens.pop("token_type_ids")
    [batch] = task.loader(examples, 64, rows=COUNT * 4, last="fill")
    check_equal(judged(model, made, task), stepped(model, task, [batch]))


def test_negatives_are_those_of_the_micro_step():
    task = Contrastive(tokenizer())
    model, made = encoder(task), records(1)
    batches = list(task.loader(made, 40, rows=2, accumulation=2, last="fill"))
    assert len(batches) > 1
    parts = [(b, [made[n] for n in b["pairs"][b["roles"] == 0].tolist()]) for b in batches if b.weight]
    total, gradients = 0.0, {}
    for _, part in parts:
        loss, found = judged(model, part, task)
        total += loss * len(part) / COUNT
        gradients = {name: gradients.get(name, 0) + one * len(part) / COUNT for name, one in found.items()}
    assert sum(len(part) for _, part in parts) == COUNT
    check_equal((total, gradients), stepped(model, task, batches))


def test_the_order_of_sequences_in_a_batch_does_not_matter():
    task = Contrastive(tokenizer())
    examples = task.encode(records(1))
    model = encoder(task)
    order = torch.randperm(len(examples), generator=torch.Generator().manual_seed(0)).numpy()
    batches = [
        nopad.PackedBatch.from_columns(examples.sequences.take(number), nopad.Rows(64))
        for number in (order, torch.arange(len(examples)).numpy())
    ]
    check_equal(*(stepped(model, task, [batch]) for batch in batches))


def on_rank(rank, folder):
    """One of two processes: unequal shares, under DDP; and one in which a rank has nothing but a stand-in."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    for name, shares in SHARES.items():
        task = Contrastive(tokenizer(), symmetric=name == "unequal")
        examples = task.encode(records(1))
        model = encoder(task)
        wrapped = torch.nn.parallel.DistributedDataParallel(nopad.packed(model))
        first, last = shares[rank] or [0, 1]
        batch = nopad.PackedBatch.from_columns(examples.sequences.part(3 * first, 3 * last), nopad.Rows(64))
        batch = batch if shares[rank] else batch.as_stand_in()
        whole = task.objective.count(batch)
        dist.all_reduce(whole)
        loss, outputs = task.objective.step(wrapped, batch, whole)
        (loss * 2).backward()
        meter = task.objective.meter()
        if batch.weight:
            meter.add(outputs, batch)
        meter.reduce()
        total = loss.detach().clone()
        dist.all_reduce(total)
        gradients = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
        torch.save({"loss": total, "gradients": gradients, "values": meter.values()}, f"{folder}/{name}-{rank}.pt")
    leave(folder, rank)


SHARES = {"unequal": ([0, 2], [2, COUNT]), "stand-in": ([0, COUNT], None)}


@pytest.fixture(scope="module")
def ranks(tmp_path_factory, on_two_ranks):
    folder = tmp_path_factory.mktemp("ranks")
    on_two_ranks(on_rank, folder)
    return folder


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of torch about its own process groups
@pytest.mark.parametrize("name", SHARES)
def test_two_processes_under_ddp_are_one(name, ranks):
    task = Contrastive(tokenizer(), symmetric=name == "unequal")
    model, made = encoder(task), records(1)
    wanted = judged(model, made, task)
    [batch] = task.loader(task.encode(made), 64, rows=COUNT * 4, last="fill")
    with torch.no_grad():
        meter = task.objective.meter()
        meter.add(task.objective.outputs(nopad.packed(model), batch), batch)
    for rank in (0, 1):
        found = torch.load(f"{ranks}/{name}-{rank}.pt", weights_only=True)
        check_equal(wanted, (found["loss"].item(), found["gradients"]))
        assert found["values"] == pytest.approx(meter.values(), abs=1e-12)


@pytest.mark.parametrize("same", ["mask", "keep"])
def test_metrics_are_of_all_records_whatever_the_batches(same):
    task = Contrastive(tokenizer(), same=same)
    made = records(1)
    made[7]["positive"] = made[7]["anchor"] + " a"
    model = encoder(task)
    sides = [vectors_alone(model, [one[name] for one in made], "mean", True) for name in ("anchor", "positive")]
    hard = vectors_alone(model, [one["negative"] for one in made], "mean", True)
    ranks = []
    for i, one in enumerate(made):
        right = sides[0][i] @ sides[1][i]
        against = [
            sides[0][i] @ sides[1][j]
            for j, other in enumerate(made)
            if j != i
            and not (
                same == "mask"
                and (other["positive"] in (one["positive"], one["anchor"]) or other["anchor"] == one["anchor"])
            )
        ]
        against += [
            sides[0][i] @ vector
            for other, vector in zip(made, hard, strict=True)
            if not (same == "mask" and other["negative"] in (one["positive"], one["anchor"]))
        ]
        ranks.append(1 + sum(bool(score >= right - 1e-12) for score in against))
    nopad.packed(model)
    for capacity, rows in ((40, 1), (64, 50)):
        meter = task.objective.meter()
        for batch in task.loader(made, capacity, rows=rows, last="fill"):
            meter.add(task.objective.outputs(model, batch), batch)
        meter.reduce()
        found = meter.values()
        assert found["accuracy_at_1"] == pytest.approx(ranks.count(1) / COUNT)
        assert found["mrr"] == pytest.approx(sum(1 / rank for rank in ranks) / COUNT)
    assert all(math.isnan(value) for value in task.objective.meter().values().values())
    meter = task.objective.meter()
    meter.add({"embeddings": torch.ones(0, 4)}, {name: torch.zeros(0, dtype=torch.long) for name in InBatch.targets})
    assert all(math.isnan(value) for value in meter.values().values())  # a batch without an anchor: divided by zero


def test_a_training_loop_learns():
    task = Contrastive(tokenizer())
    made = records()
    made[3]["positive"], made[4]["anchor"] = "tool tool", "system"
    model = nopad.packed(encoder(task))
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    loader = task.loader(made, 64, rows=50, last="fill")
    losses = []
    for _ in range(15):
        for batch in loader:
            loss, _ = task.objective.step(model, batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    assert losses[-1] < losses[0] / 10


def test_predictions_are_vectors_of_the_anchor():
    task = Contrastive(tokenizer(), prompt="what ")
    model = encoder(task)
    found = list(predict(task, model, [{"anchor": one["anchor"]} for one in records()]))
    wanted = vectors_alone(model, ["what " + one["anchor"] for one in records()], "mean", True)
    for one, other in zip(found, wanted, strict=True):
        assert one["embedding"] == pytest.approx(other.tolist(), abs=1e-6)


def test_what_is_too_long():
    made = records(1)
    lengths = [[len(tokenizer()(one[name])["input_ids"]) for name in one] for one in made]
    cut = Contrastive(tokenizer(), max_length=9, over_long="truncate").encode(made)
    assert cut.counts == {"truncated_texts": sum(n > 9 for one in lengths for n in one)}
    assert len(cut) == 3 * COUNT
    left = Contrastive(tokenizer(), max_length=9, over_long="drop").encode(made)
    kept = [n for n, one in enumerate(lengths) if max(one) <= 9]
    assert 0 < len(kept) < COUNT
    assert (left.counts, left.record.tolist()) == ({"dropped": COUNT - len(kept)}, [n for n in kept for _ in range(3)])
    with pytest.raises(LengthError, match=r"record \d+ has \d+ tokens, and max_length is 9"):
        Contrastive(tokenizer(), max_length=9).encode(made)


def test_bad_input_is_refused():
    task = Contrastive(tokenizer())
    one = {"anchor": "why", "positive": "not"}
    with pytest.raises(RecordError, match="record 1 has no 'positive', only anchor"):
        task.encode([one, {"anchor": "why"}])
    with pytest.raises(RecordError, match="record 1 has 2 hard negatives, and the first one 1"):
        task.encode([{**one, "negative": "a"}, {**one, "negative": ["a", "b"]}])
    with pytest.raises(RecordError, match="record 1 has 1 hard negatives, and the first one 0"):
        task.encode([one, {**one, "negative": "a"}])
    assert Contrastive(tokenizer(), negative=None).encode([one, {**one, "negative": "a"}]).group == 2
    with pytest.raises(RecordError, match="record 0: negative is a int; it is a text, or a list of texts"):
        task.encode([{**one, "negative": 3}])
    for options, says in (
        ({"scale": 0}, "scale is 0"),
        ({"same": "drop"}, "same is 'drop'"),
        ({"pooling": "max"}, "pooling"),
    ):
        with pytest.raises(OptionError, match=says):
            Contrastive(tokenizer(), **options)
    examples = task.encode(records())
    model = nopad.packed(encoder(task))
    apart = nopad.PackedBatch.from_columns(examples.sequences.part(0, 3), nopad.Flat())
    with pytest.raises(BatchError, match="a batch has 2 anchors and 1 positives, and not each with its own"):
        task.objective.step(model, apart)
    with pytest.raises(BatchError, match="the batch has no roles, pairs, contents"):
        task.objective.step(model, nopad.PackedBatch.from_sequences([[1, 2]]))


def test_the_loader_keeps_records_together():
    task = Contrastive(tokenizer())
    for batch in task.loader(records(2), 48, rows=1):
        roles, pairs = batch["roles"].tolist(), batch["pairs"].tolist()
        assert roles == [0, 1, 2, 2] * (len(roles) // 4)
        assert all(len(set(pairs[at : at + 4])) == 1 for at in range(0, len(pairs), 4))
