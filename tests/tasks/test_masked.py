"""Masked language models: which tokens are masked, that nothing but seed, epoch and number decides it, and packs."""

from __future__ import annotations

import copy
import json
from types import FunctionType

import numpy as np
import pytest
import torch
from tests.tasks.equality import check_equal, packed, unpacked
from tests.tasks.tiny import bert, tokenizer, wordpieces, words

import nopad
from nopad import PackedLoader, random
from nopad.batch import Rows
from nopad.corpus import _mask_kernels as _kernels
from nopad.errors import BatchError, LengthError, OptionError, PlanMismatchError, RecordError
from nopad.loading import EpochCollate, causal
from nopad.tasks import MaskedLM, Masking, source
from nopad.tasks.masked import filled

COUNT = 40
SPECIAL = set(tokenizer().all_special_ids)
ORDINARY = sorted(set(tokenizer().get_vocab().values()) - SPECIAL)


def records(count=COUNT, seed=0):
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 40, (count,), generator=generator).tolist()
    return [{"text": words(generator, length)} for length in lengths]


def judged(examples):
    def loss(outputs, number):
        begin = int(examples.sequences.begins[number])
        span = slice(begin, begin + int(examples.sequences.seq_lengths[number]))
        labels = torch.from_numpy(examples.sequences.tokens["labels"][span].astype("int64"))
        at = (labels >= 0).nonzero()[:, 0]
        seen = torch.log_softmax(outputs.logits[0, at], -1)
        return -seen[torch.arange(len(at)), labels[at]].sum(), len(at)

    return loss


@pytest.mark.parametrize("copies", [None, 1])
def test_packs_change_neither_loss_nor_gradients_nor_metrics(copies):
    options = {"max_length": 24, "over_long": "split", "whole_words": True, "seed": 3}
    examples = MaskedLM(tokenizer(), copies=1, **options).encode(records())
    task = MaskedLM(tokenizer(), copies=copies, **options)
    model, right = bert(task), []
    loss = judged(examples)

    def judge(outputs, number):
        begin = int(examples.sequences.begins[number])
        labels = examples.sequences.tokens["labels"][begin : begin + int(examples.sequences.seq_lengths[number])]
        guess = outputs.logits[0].argmax(-1).numpy()
        right.append((guess[labels >= 0] == labels[labels >= 0]).tolist())
        return loss(outputs, number)

    alone = unpacked(model, examples, judge)
    right = [one for some in right for one in some]
    for world_size in (1, 2):
        found, gradients, meter = packed(model, task, task.encode(records()), world_size=world_size)
        check_equal(alone, (found, gradients))
        assert meter.values()["accuracy"] == pytest.approx(sum(right) / len(right), abs=1e-12)


def contents(batches):
    """Ids and labels of each sequence, by its number."""
    found = {}
    for batch in batches:
        if batch.weight:
            parts = [batch.unpack_tokens(batch[name]) for name in ("input_ids", "labels")]
            for number, *sides in zip(batch.records["seq_index"].tolist(), *parts, strict=True):
                assert number not in found
                found[number] = tuple(side.tolist() for side in sides)
    return found


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_masks_depend_on_seed_epoch_and_number_alone():
    task = MaskedLM(tokenizer(), seed=5)
    examples = task.encode(records())

    def loaders(world_size=1, **options):
        options = {"capacity": 64, "rows": 1} | options
        return [
            task.loader(examples, last="fill", rank=rank, world_size=world_size, **options)
            for rank in range(world_size)
        ]

    (plain,) = loaders()
    wanted = [contents(plain), contents(plain)]
    assert wanted[0].keys() == wanted[1].keys() == set(range(COUNT))
    assert sum(wanted[0][n] != wanted[1][n] for n in range(COUNT)) > COUNT * 0.8
    for options in (
        {"rows": 3, "prefetch": 0},
        {"seed": 9},
        {"capacity": None, "rows": None, "sequences": 4},
        {"capacity": 128, "accumulation": 2},
        {"world_size": 3},
    ):
        found = loaders(**options)
        for epoch in range(2):
            assert contents([batch for loader in found for batch in loader]) == wanted[epoch]
    (workers,) = loaders()
    batches = workers.dataloader(num_workers=2)
    assert [contents(batches), contents(batches)] == wanted
    (again,) = loaders()
    again.set_epoch(1)
    begun = iter(again)
    first = [next(begun) for _ in range(3)]
    (resumed,) = loaders(rows=1)
    resumed.load_state_dict(again.state_dict())
    assert contents([*first, *resumed]) == wanted[1]
    others = MaskedLM(tokenizer(), seed=6)
    assert contents(others.loader(examples, 64, rows=1)) != wanted[0]


def test_masks_that_stay_are_those_of_the_first_epochs():
    given = records()
    moving, still = MaskedLM(tokenizer(), seed=5), MaskedLM(tokenizer(), seed=5, copies=2)
    loader = moving.loader(moving.encode(given), 64, rows=1)
    epochs = [contents(loader), contents(loader)]
    examples = still.encode(given)
    assert examples.record.tolist() == [n for n in range(COUNT) for _ in range(2)]
    loader = still.loader(examples, 64, rows=1)
    for _ in range(2):
        found = contents(loader)
        assert all(found[2 * n + epoch] == epochs[epoch][n] for n in range(COUNT) for epoch in range(2))


def test_masks_that_stay_are_not_drawn_alike_in_each_part_of_the_records(monkeypatch):
    """`pack` encodes a thousand records at a time: records 0 and 1,000 got the same draws."""
    given = [{"text": "the cat sleeps in the house of the dog and the tree"}] * 40
    task = MaskedLM(tokenizer(), rate=0.5, copies=1)
    wanted = task.encode(given).sequences.tokens["labels"].tolist()
    monkeypatch.setattr(source, "_AT_ONCE", 1)
    runs = [run for block in source.TaskSource(task, given).blocks() for run in block.records()]
    assert [label for run in runs for label in run.ids.tokens["labels"].tolist()] == wanted


def test_shares_and_ids():
    ids = np.random.default_rng(0).integers(0, max(ORDINARY) + 1, 200_000)
    masking = Masking(tokenizer(), seed=1)
    made = nopad.sequences.Sequences(
        seq_lengths=np.full(400, 500, np.int32), tokens={"input_ids": ids}, values={"seq_index": np.arange(400)}
    )
    found = masking.masked(made, 0)
    after, labels = found.tokens["input_ids"], found.tokens["labels"]
    ordinary = ~np.isin(ids, list(SPECIAL))
    chosen = labels >= 0
    assert not (chosen & ~ordinary).any()
    np.testing.assert_array_equal(labels[chosen], ids[chosen])
    assert set(labels[~chosen].tolist()) == {-100}
    np.testing.assert_array_equal(after[~chosen], ids[~chosen])
    check_share(chosen.sum(), ordinary.sum(), 0.15)
    masked = after[chosen] == tokenizer().mask_token_id
    kept = after[chosen] == ids[chosen]
    check_share(masked.sum(), chosen.sum(), 0.8)
    check_share(kept.sum(), chosen.sum(), 0.1 + 0.1 / len(ORDINARY))
    drawn = after[chosen][~masked]
    assert set(drawn.tolist()) == set(ORDINARY)
    drawn = after[chosen][~masked & ~kept]
    counts = np.array([(drawn == one).sum() for one in ORDINARY])
    expected = drawn.size / len(ORDINARY)
    assert ((counts - expected) ** 2 / expected).sum() < len(ORDINARY) + 5 * (2 * len(ORDINARY)) ** 0.5
    # Sequences differ, and so do places in them.
    by_sequence = chosen.reshape(400, 500)
    assert np.unique(by_sequence, axis=0).shape[0] == 400
    assert by_sequence.sum(0).min() > 20
    assert by_sequence.sum(1).min() > 30


def check_share(count, of, share):
    """Within five standard deviations."""
    assert abs(count - of * share) < 5 * (of * share * (1 - share)) ** 0.5


@pytest.mark.parametrize(("rate", "low", "high"), [(1.0, 1.0, 1.0), (0.3, 0.25, 0.35)])
def test_other_rates(rate, low, high):
    task = MaskedLM(tokenizer(), rate=rate, copies=1)
    made = task.encode(records(100)).sequences
    ids, labels = made.tokens["input_ids"], made.tokens["labels"]
    ordinary = np.isin(np.where(labels >= 0, labels, ids), ORDINARY)
    ordinary |= (ids == tokenizer().mask_token_id) & (labels >= 0)
    assert low <= (labels >= 0).sum() / ordinary.sum() <= high


def test_the_loop_is_the_readable_one(check_twins):
    space = {**vars(nopad._kernels), **vars(_kernels)}
    for name in ("mix", "bounded", "mark", "by_draw", "choose", "mask"):
        space[name] = FunctionType(space[name].py_func.__code__, space)
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 9, 20).astype(np.int32)
    size = int(lengths.sum())
    names = rng.integers(-1, 9, (20, 3))
    ordinary, key = np.array([7, 9, 11]), np.uint64(rng.integers(2**63))
    ids, kinds = rng.integers(5, 12, size), rng.integers(0, 3, size).astype(np.int8)
    below = np.uint64(2**63)
    free = np.full(20, -1)
    arguments = [ids, np.empty(size, np.int64), kinds, lengths, names, key, below, free, 4, ordinary]
    before = copy.deepcopy(arguments)
    check_twins(_kernels.mask, space["mask"], arguments)
    at = 0
    for number, length in enumerate(lengths.tolist()):
        mine = int(key)
        for part in names[number].tolist():
            mine = random.mix((mine ^ (part & random.MASK)) + random.GOLDEN)
        chosen = False
        for t in range(length):
            one, kind = int(before[0][at]), int(kinds[at])
            if kind == 2:
                chosen = random.draw(mine, 3 * t) < 2**63
            wanted = one
            if chosen and kind:
                how = random.draw(mine, 3 * t + 1) / 2**64
                other = int(ordinary[random.bounded(random.draw(mine, 3 * t + 2), 3)])
                wanted = 4 if how < 0.8 else other if how < 0.9 else one
            assert (int(ids[at]), int(arguments[1][at])) == (wanted, one if chosen and kind else -100)
            at += 1


def test_whole_words_are_masked_together():
    """WordPiece: a word that ends with "s" or "es" has two tokens; so has a word that a window cuts in two."""
    text = " ".join(["Londons", "cat", "houses", "Romes", "dogs", "rivers"] * 20)
    task = MaskedLM(wordpieces(), whole_words=True, rate=0.5, copies=1, max_length=9, over_long="split")
    made = task.encode([{"text": text}])
    starts = np.zeros(len(made.sequences.tokens["labels"]), bool)
    starts[made.sequences.begins + 1] = True
    free = MaskedLM(wordpieces(), max_length=9, over_long="split", copies=1, rate=0.5)
    together = []
    for one in (made, free.encode([{"text": text}])):
        plain = wordpieces()(text, add_special_tokens=False)["input_ids"]
        rows = [plain[at : at + 7] for at in range(0, len(plain), 7)]
        ids = np.array([n for row in rows for n in [2, *row, 3]])
        later = np.char.startswith(np.array(wordpieces().convert_ids_to_tokens(ids.tolist())), "##") & ~starts
        assert later.sum() > 30
        chosen = one.sequences.tokens["labels"] >= 0
        known = later & (ids != 1) & (np.roll(ids, 1) != 1)
        together.append((chosen == np.roll(chosen, 1))[known].mean())
        assert 0.3 < chosen.mean() < 0.6
    assert together[0] == 1.0 > together[1]


def test_special_tokens_and_unknown_words_in_a_text_are_never_masked():
    task = MaskedLM(tokenizer(), rate=1.0, copies=1)
    made = task.encode([{"text": "cat [SEP] nothing-known [MASK] dog"}]).sequences
    labels = tokenizer().convert_ids_to_tokens([n for n in made.tokens["labels"].tolist() if n >= 0])
    assert labels == ["cat", "dog"]


def test_masks_are_filled():
    task = MaskedLM(tokenizer(), top=3, max_length=5, over_long="split")
    given = [{"text": "the [MASK] eats a [MASK] cat [MASK]"}, {"text": "red"}, {"text": "[MASK]"}]
    examples = task.encode(given, labels=False)
    assert "maskable" not in examples.sequences.tokens
    model = bert(task).eval()
    nopad.packed(model)
    found = [None] * len(examples)
    for batch in task.loader(examples, 16, rows=2, last="fill"):
        assert "labels" not in batch
        if batch.weight:
            outputs = task.objective.outputs(model, batch)
            for number, one in zip(batch.records["seq_index"].tolist(), task.results(outputs, batch), strict=True):
                found[number] = one
    nopad.unpacked(model)
    predictions = task.merged(found, examples)
    assert [len(one["fill"]) for one in predictions] == [3, 0, 1]
    rows = np.split(examples.sequences.tokens["input_ids"], examples.sequences.begins[1:])
    wanted = []
    for row in rows:
        logits = model(torch.from_numpy(row.astype("int64"))[None]).logits[0]
        for at in np.flatnonzero(row == tokenizer().mask_token_id):
            share = torch.softmax(logits[at], -1)
            wanted.append(
                [(tokenizer().decode([n]), pytest.approx(share[n].item())) for n in share.argsort()[-3:].flip(0)]
            )
    assert [[(best["token"], best["score"]) for best in one] for p in predictions for one in p["fill"]] == wanted


def test_padding_that_has_the_id_of_the_mask_is_not_filled():
    """With a mask of id 0, padding got words, which went to the last sequence of the batch."""
    batch = nopad.PackedBatch.from_sequences([[0, 5], [7, 8, 9], [0]], Rows(5, rows=2))
    logits = torch.randn(2, 5, 11, generator=torch.Generator().manual_seed(0))
    found = filled(logits, batch, 0, 2, tokenizer())
    assert [len(one) for one in found] == [1, 0, 1]
    places = [int((batch.sequence_ids == n).argmax()) for n in (1, 3)]
    best = logits.view(10, 11)[places].argmax(-1).tolist()
    assert [one[0][0]["id"] for one in (found[0], found[2])] == best


def test_streams_and_stored_tokens_are_masked_too():
    data = [tokenizer()(one["text"])["input_ids"] for one in records()]
    masking = Masking(tokenizer(), seed=5)
    stored = contents(PackedLoader(data, 64, rows=1, last="fill", collate=masking))
    task = MaskedLM(tokenizer(), seed=5)
    assert stored == contents(task.loader(task.encode(records()), 64, rows=1, last="fill"))

    def stream(**options):
        source = lambda: iter([{"input_ids": ids} for ids in data])  # noqa: E731
        return PackedLoader(source, 64, rows=1, collate=masking, rank=0, world_size=1, **options)

    stopping = stream(exhausted="stop", last="fill")
    passes = [contents(stopping), contents(stopping)]
    assert passes[0] == stored
    assert passes[1] == contents(masked_in_epoch(data, masking, 1))
    endless = stream(exhausted="repeat")
    wanted = [batch["input_ids"].tolist() for batch, _ in zip(endless, range(40), strict=False)]
    again = stream(exhausted="repeat")
    begun = iter(again)
    found = [next(begun)["input_ids"].tolist() for _ in range(25)]
    resumed = stream(exhausted="repeat")
    resumed.load_state_dict(again.state_dict())
    assert resumed.epoch > 0
    found += [batch["input_ids"].tolist() for batch, _ in zip(resumed, range(15), strict=False)]
    assert found == wanted


def masked_in_epoch(data, masking, epoch):
    loader = PackedLoader(data, 64, rows=1, last="fill", collate=masking, rank=0, world_size=1)
    loader.set_epoch(epoch)
    return loader


def test_parts_of_a_record_have_masks_of_their_own():
    made = nopad.sequences.Sequences(
        seq_lengths=np.full(2, 200, np.int32),
        tokens={"input_ids": np.full(400, ORDINARY[0])},
        values={"seq_index": np.array([3, 3]), "seq_start": np.array([0, 200])},
    )
    first, second = np.split(Masking(tokenizer()).masked(made, 0).tokens["labels"], 2)
    assert (first != second).any()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("other", "message"),
    [({"seed": 4}, "mask_seed is 4 and was 3"), ({"rate": 0.25}, "mask_rate is 0.25 and was 0.15"), (None, "mask_ids")],
)
def test_a_run_goes_on_with_the_same_masks_or_not_at_all(stream, other, message):
    def made(masking):
        how = {"exhausted": "repeat"} if stream else {"rows": 1}
        data = [[int(one) for one in ORDINARY[:9]]] * 20
        more = {"rows": 1, **how}
        return PackedLoader(data, 32, collate=masking, rank=0, world_size=1, **more)

    loader = made(Masking(tokenizer(), seed=3))
    batches = iter(loader)
    next(batches)
    state = json.loads(json.dumps(loader.state_dict()))
    wanted = next(batches)
    again = made(Masking(tokenizer(), seed=3))
    again.load_state_dict(state)
    found = next(iter(again))
    assert torch.equal(found["input_ids"], wanted["input_ids"])
    assert torch.equal(found["labels"], wanted["labels"])
    with pytest.raises(PlanMismatchError, match=message):
        made(causal if other is None else Masking(tokenizer(), **{"seed": 3, **other})).load_state_dict(state)


def test_an_epoch_collate_by_itself_is_epoch_0():
    class Numbered(EpochCollate):
        def at(self, epoch):
            return lambda sequences, form, per_row: epoch

    assert Numbered()(None, None, None) == 0
    with pytest.raises(OptionError, match="collate gave a int"):
        next(iter(PackedLoader([[1, 2]], 2, rows=1, collate=Numbered())))


def test_bad_input_is_refused():
    with pytest.raises(LengthError, match="record 1 has no token: its text is ' '; leave it out, or skip"):
        MaskedLM(tokenizer(), empty="error").encode([{"text": "cat"}, {"text": " "}])
    with pytest.raises(OptionError, match="empty is 'drop'; it is 'skip' or 'error'"):
        MaskedLM(tokenizer(), empty="drop")
    with pytest.raises(RecordError, match="record 0 has no 'text'"):
        MaskedLM(tokenizer()).encode([{"sentence": "cat"}])
    with pytest.raises(LengthError, match="record 0 has 4 tokens, and max_length is 3"):
        MaskedLM(tokenizer(), max_length=3).encode([{"text": "the cat"}])
    with pytest.raises(LengthError, match="there is no record"):
        MaskedLM(tokenizer(), copies=2).encode([])
    for options, message in [
        ({"rate": 0}, "rate is 0"),
        ({"rate": 15}, "rate is 15"),
        ({"rate": True}, "rate is True"),
        ({"copies": 0}, "copies must be"),
        ({"seed": -1}, "seed must be"),
        ({"whole_words": 1}, "whole_words must be"),
        ({"top": 0}, "top must be"),
    ]:
        with pytest.raises(OptionError, match=message):
            MaskedLM(tokenizer(), **options)
    without = copy.deepcopy(tokenizer())
    without.mask_token = None
    with pytest.raises(OptionError, match="has no mask token"):
        MaskedLM(without)
    still = MaskedLM(tokenizer(), copies=1).encode(records())
    with pytest.raises(BatchError, match="are masked already"):
        next(iter(PackedLoader(still.sequences, 64, rows=1, collate=Masking(tokenizer()))))
    with pytest.raises(BatchError, match="no seq_index"):
        Masking(tokenizer()).masked(
            still.sequences.__class__(seq_lengths=np.ones(1, np.int32), tokens={"input_ids": np.ones(1)}), 0
        )
