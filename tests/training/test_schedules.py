"""The recipe of a learning rate, and `CountedLR`: in a plain loop, in transformers' Trainer, resumed, refused."""

from __future__ import annotations

import itertools
import json
import math

import pytest

pytest.importorskip("torch")

import torch

import nopad
from nopad.errors import FormatError, OptionError
from nopad.training import CountedLR, Lamb, Schedule

pytestmark = pytest.mark.filterwarnings("ignore")

LENGTHS = [3, 7, 1, 9, 4, 4, 12, 2, 5, 8, 6, 11, 10, 1, 1, 16, 3, 2, 9, 5]


def loader(**options):
    data = [[number + 1] * length for number, length in enumerate(LENGTHS)]
    same = {"rows": 1, "accumulation": 2, "last": "fill", "rank": 0, "world_size": 1}
    return nopad.PackedLoader(data, 16, **same | options)


def wanted(s, seen, total):
    """The rate, another way: the lower of two lines through their ends, for a decay that is one."""
    warmup = s.warmup if s.warmup >= 1 else math.ceil(s.warmup * total)
    if seen >= total:
        return s.end
    rising = s.initial + (1 - s.initial) * seen / warmup if warmup else math.inf
    falling = s.end + (1 - s.end) * ((total - seen) / (total - warmup)) ** s.power if total > warmup else math.inf
    return rising if seen < warmup else falling


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"warmup": 30, "initial": 0.2},
        {"warmup": 0.25, "end": 0.1},
        {"warmup": 100, "end": 0.5, "initial": 0.9},
        {"power": 2.0, "warmup": 10},
        {"power": 0.5, "end": 5e-4},
        {"power": 0.0, "warmup": 1},
    ],
    ids=str,
)
def test_the_rate_after_so_much(options):
    schedule = Schedule(total=100, **options)
    for seen in range(120):
        assert schedule.ratio(seen) == pytest.approx(wanted(schedule, seen, 100), rel=1e-14), seen
    assert schedule.ratio(0, 7) == schedule.ratio(0)  # its own total comes first


def test_it_is_transformers_schedule_where_that_counts_steps():
    transformers = pytest.importorskip("transformers")
    for power, end in ((1.0, 0.0), (2.0, 0.1)):
        rates = []
        for kind in ("theirs", "ours"):
            optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.5)
            if kind == "theirs":
                made = transformers.get_polynomial_decay_schedule_with_warmup(optimizer, 7, 40, end * 0.5, power)
            else:
                made = CountedLR(optimizer, Schedule(counts="steps", warmup=7, end=end, power=power), steps=40)
            rates.append([])
            for _ in range(45):
                rates[-1].append(optimizer.param_groups[0]["lr"])
                optimizer.step()
                made.step()
        assert rates[0] == pytest.approx(rates[1], rel=1e-12, abs=1e-15)


def test_the_eight_values_of_table_4():
    """LR, beta1, weight decay, beta2, warm-up steps, end LR ratio, eps, LR init: as "Breaking MLPerf" tunes them."""
    rate, warmup, start = 1e-3, 300, -47
    parameters = [torch.nn.Parameter(torch.ones(2))]
    optimizer = Lamb(parameters, lr=rate, betas=(0.75, 0.9), weight_decay=0.05, eps=1e-11)
    recipe = Schedule(counts="steps", warmup=warmup + start, initial=-start / warmup, end=5e-4)
    schedule = CountedLR(optimizer, recipe, steps=1000)
    for step in range(1000):
        if step - start < warmup:  # MLPerf's warm-up, which begins at step -47
            assert schedule.get_last_lr()[0] == pytest.approx(rate * (step - start) / warmup, rel=1e-12)
        optimizer.step()
        schedule.step()
    assert schedule.get_last_lr() == [rate * 5e-4]


@pytest.mark.parametrize("counts", ["sequences", "tokens", "steps"])
def test_a_loop_has_the_rates_of_what_it_saw(counts):
    """Two epochs: the rate of each step is that after the sequences, tokens or steps before it, counted here."""
    given = loader()
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=2.0)
    recipe = Schedule(counts=counts, warmup=0.2, initial=0.1, end=0.05)
    schedule = CountedLR(optimizer, recipe, given, epochs=2)
    total = {"sequences": 2 * len(LENGTHS), "tokens": 2 * sum(LENGTHS), "steps": len(given)}[counts]
    assert schedule.total == total
    seen, micro_steps, rates = 0, 0, []
    for _ in range(2):
        for batch in given:
            if micro_steps % 2 == 0:
                assert schedule.get_last_lr() == [optimizer.param_groups[0]["lr"]]
                assert schedule.get_last_lr()[0] == pytest.approx(2 * wanted(recipe, seen, total), rel=1e-14)
                rates.append(schedule.get_last_lr()[0])
            micro_steps += 1
            seen += {"sequences": batch.layout.sequences, "tokens": batch.layout.tokens, "steps": 0}[counts]
            if micro_steps % 2 == 0:
                optimizer.step()
                schedule.step()
                seen += counts == "steps"
    assert seen == total
    assert schedule.get_last_lr() == [pytest.approx(2 * 0.05)]
    assert len(set(rates)) == len(rates)


@pytest.mark.parametrize("counts", ["sequences", "tokens", "steps"])
@pytest.mark.parametrize("order", ["schedule last", "schedule before the loader", "optimizer last"])
def test_a_loop_goes_on_bit_for_bit(counts, order):
    def begin():
        weight = torch.nn.Parameter(torch.linspace(-1, 2, 5, dtype=torch.float64))
        optimizer = Lamb([weight], lr=0.1)
        return weight, loader(), optimizer, Schedule(counts=counts, warmup=0.3)

    def go(weight, given, optimizer, schedule, steps):
        rates = []
        for micro, batch in enumerate(batch for _ in range(3) for batch in given):
            weight.grad = (0 if weight.grad is None else weight.grad) + weight.detach() * batch.layout.tokens
            if micro % 2:
                optimizer.step()
                schedule.step()
                weight.grad = None
                rates.append(schedule.get_last_lr()[0])
                if len(rates) == steps:
                    return rates
        return rates

    weight, given, optimizer, recipe = begin()
    whole_run = go(weight, given, optimizer, CountedLR(optimizer, recipe, given, epochs=3), 100)
    first, given, optimizer, recipe = begin()
    schedule = CountedLR(optimizer, recipe, given, epochs=3)
    before = go(first, given, optimizer, schedule, 7)
    states = json.loads(json.dumps([given.state_dict(), schedule.state_dict()])), optimizer.state_dict()
    again, given, optimizer, recipe = begin()
    again.data.copy_(first.data)
    if order == "schedule before the loader":
        schedule = CountedLR(optimizer, recipe, given, epochs=3)
        schedule.load_state_dict(states[0][1])
    if order == "schedule last":
        optimizer.load_state_dict(states[1])
    given.load_state_dict(states[0][0])
    if order != "schedule before the loader":
        schedule = CountedLR(optimizer, recipe, given, steps=None, epochs=3)
        schedule.load_state_dict(states[0][1])
    if order != "schedule last":
        optimizer.load_state_dict(states[1])
    assert optimizer.param_groups[0]["lr"] == before[-1]
    after = go(again, given, optimizer, schedule, len(whole_run) - 7)
    assert before + after == whole_run
    assert torch.equal(again, weight)


def test_a_schedule_begins_where_the_loader_stands():
    given = loader()
    for _ in given:
        pass
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    assert CountedLR(optimizer, Schedule(counts="sequences"), given, epochs=3).total == 2 * len(LENGTHS)
    steps = CountedLR(optimizer, Schedule(counts="steps"), given, epochs=3)
    assert (steps.total, steps.seen) == (2 * given.summary().steps, 0)  # was 3 epochs, though one is over
    resumed = CountedLR(optimizer, Schedule(counts="steps"), given, epochs=5)
    resumed.load_state_dict(steps.state_dict())
    assert (resumed.before, resumed.total) == (2 * given.summary().steps, 4 * given.summary().steps)
    assert CountedLR(optimizer, Schedule(counts="sequences", total=5), given).seen == 0
    with pytest.raises(OptionError, match="the schedule has 0 tokens, and needs at least 1"):
        CountedLR(optimizer, Schedule(counts="tokens"), given, epochs=1)


@pytest.mark.parametrize("given_already", [1, 3, None])
def test_a_run_resumes_however_little_is_left(given_already):
    """What was left was taken for all of training, and was shorter than the warm-up, or nothing."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    first, schedule = loader(accumulation=1), Schedule(counts="sequences", warmup=len(LENGTHS))
    begun = CountedLR(optimizer, schedule, first, epochs=1)
    for _ in itertools.islice(first, given_already):
        optimizer.step()
        begun.step()
    again = loader(accumulation=1)
    again.load_state_dict(first.state_dict())
    with pytest.raises(OptionError, match="if a state is loaded into the schedule next, give resumes=True"):
        CountedLR(optimizer, schedule, again, epochs=1)
    resumed = CountedLR(optimizer, schedule, again, epochs=1, resumes=True)
    resumed.load_state_dict(begun.state_dict())
    assert (resumed.total, resumed.get_last_lr()) == (begun.total, begun.get_last_lr())


def test_another_length_of_training_is_taken_and_another_count_refused():
    given = loader()
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    state = CountedLR(optimizer, Schedule(), given, epochs=2).state_dict()
    longer = CountedLR(optimizer, Schedule(), given, epochs=4)
    longer.load_state_dict(state)
    assert (longer.before, longer.total) == (2 * len(LENGTHS), 4 * len(LENGTHS))
    with pytest.raises(OptionError, match="counts tokens, and the one that is to go on counted sequences"):
        CountedLR(optimizer, Schedule(counts="tokens"), given, epochs=2).load_state_dict(state)
    with pytest.raises(FormatError, match="no state of a schedule that counts: it has no 'asked'"):
        longer.load_state_dict({"last_epoch": 3, "_step_count": 4})
    for asked in (None, 3, {}):
        with pytest.raises(FormatError, match=f"no state of a schedule that counts: its 'asked' is {asked}; take"):
            longer.load_state_dict({**state, "asked": asked})


@pytest.mark.parametrize("counts", ["sequences", "tokens", "steps"])
def test_a_run_that_gets_longer_has_the_rates_of_its_new_length_at_once(counts):
    def begun(epochs, steps):
        given, optimizer = loader(), torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.5)
        length = {"steps": steps} if counts == "steps" else {"epochs": epochs}
        return given, optimizer, CountedLR(optimizer, Schedule(counts=counts, end=0.25), given, **length)

    short, long = begun(1, 10), begun(2, 20)
    for given, optimizer, schedule in (short, long):
        for _ in given:
            optimizer.step()
            schedule.step()
    given, optimizer, schedule = begun(2, 20)
    given.load_state_dict(short[0].state_dict())
    optimizer.load_state_dict(short[1].state_dict())
    schedule.load_state_dict(short[2].state_dict())
    assert schedule.get_last_lr() == [group["lr"] for group in optimizer.param_groups] == long[2].get_last_lr()
    assert schedule.get_last_lr() != short[2].get_last_lr()


def test_a_loader_that_was_not_moved_too_is_noticed():
    given = loader()
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    schedule = CountedLR(optimizer, Schedule(), given, epochs=2)
    for _ in given:
        pass
    schedule.step()
    other = CountedLR(optimizer, Schedule(), loader(), epochs=2)
    other.load_state_dict(schedule.state_dict())
    with pytest.raises(OptionError, match=r"the loader stands at 0 sequences, .* went on from 20; load the loader's"):
        other.step()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"counts": "samples"}, "schedule.counts is 'samples'; it is 'sequences', 'tokens' or 'steps'"),
        ({"total": 0}, "the schedule has 0 sequences, and needs at least 1"),
        ({"total": -5}, "has -5 sequences"),
        ({"total": 1.5}, "schedule.total is 1.5; it is a whole number"),
        ({"total": 10, "warmup": 11}, "schedule.warmup is 11 sequences, and all of training has 10"),
        ({"warmup": -1}, "schedule.warmup is -1; it is a number from 0"),
        ({"warmup": 1.5}, "schedule.warmup is 1.5; it is a whole number of sequences, or a share"),
        ({"warmup": math.inf}, "schedule.warmup is inf; it is a finite number from 0"),
        ({"warmup": True}, "schedule.warmup is True"),
        ({"initial": 1.5}, "schedule.initial is 1.5; it is a number from 0 to 1"),
        ({"end": -0.1}, "schedule.end is -0.1"),
        ({"end": math.nan}, "schedule.end is nan"),
        ({"power": -1}, "schedule.power is -1"),
    ],
)
def test_schedules_without_a_meaning(options, message):
    with pytest.raises(OptionError) as caught:
        Schedule(**options)
    assert message in str(caught.value)


def test_a_length_that_nobody_knows():
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    with pytest.raises(OptionError, match="counts tokens asks a PackedLoader"):
        CountedLR(optimizer, Schedule(counts="tokens"), steps=5)
    with pytest.raises(OptionError, match=r"how many sequences all of training has is not known; give schedule.total"):
        CountedLR(optimizer, Schedule(), loader())
    stream = nopad.PackedLoader(lambda: iter([{"input_ids": [1, 2]}] * 9), 8, rows=1, exhausted="repeat")
    with pytest.raises(OptionError, match=r"is not known of a stream; give schedule.total"):
        CountedLR(optimizer, Schedule(), stream, epochs=1)
    assert CountedLR(optimizer, Schedule(total=9), stream).total == 9
    two = nopad.PackedLoader(
        lambda: iter([{"input_ids": [1, 2]}] * 9), 8, rows=1, exhausted="repeat", rank=0, world_size=2
    )
    with pytest.raises(OptionError, match="a rank of a stream knows only its own sequences; on several ranks, count"):
        CountedLR(optimizer, Schedule(total=9), two)
    with pytest.raises(OptionError, match="how long is the whole"):
        Schedule().ratio(3)
    with pytest.raises(OptionError, match=r"schedule.warmup is 50 sequences, and all of training has 40"):
        CountedLR(optimizer, Schedule(warmup=50), loader(), epochs=2)


class TestInTheTrainer:
    """`PackedTrainer` with LAMB and a schedule."""

    @staticmethod
    def made(folder, counts="tokens", data=None, **how):
        pytest.importorskip("accelerate")
        from runs import arguments, model
        from runs import loader as causal

        from nopad.training import PackedTrainer

        args = arguments(folder, weight_decay=0.01, adam_epsilon=1e-6, **how)
        return PackedTrainer(
            model(dropout=0.1),
            args,
            train_dataset=causal() if data is None else data,
            schedule=Schedule(counts=counts, warmup=0.2, end=0.1),
            optimizer_cls_and_kwargs=Lamb.of(args),
            quiet=True,
        )

    @pytest.mark.parametrize("counts", ["tokens", "sequences", "steps"])
    def test_each_step_has_the_rate_of_what_was_seen_before_it(self, tmp_path, counts):
        from runs import EPOCHS, LENGTHS

        run = self.made(tmp_path, counts)
        run.train()
        lines = [line for line in run.state.log_history if "loss" in line]
        assert len(lines) == run.state.max_steps
        total = EPOCHS * {"tokens": LENGTHS.sum(), "sequences": LENGTHS.size, "steps": 13}[counts]
        seen = 0
        for line in lines:
            assert line["learning_rate"] == pytest.approx(1e-2 * wanted(run.schedule, seen, total), rel=1e-12)
            seen = line["step"] if counts == "steps" else line[f"{counts}_seen"]
        assert seen == total
        assert isinstance(run.optimizer.optimizer, Lamb)
        assert sorted(group["weight_decay"] for group in run.optimizer.param_groups) == [0.0, 0.01]

    def test_a_run_that_was_cut_goes_on_bit_for_bit(self, tmp_path):
        run = self.made(tmp_path / "a", save_strategy="steps", save_steps=5)
        run.train()
        again = self.made(tmp_path / "b")
        again.train(resume_from_checkpoint=str(tmp_path / "a" / "checkpoint-10"))
        for ours, theirs in zip(again.model.parameters(), run.model.parameters(), strict=True):
            assert torch.equal(ours, theirs)
        rates = [[line["learning_rate"] for line in one.state.log_history if "loss" in line] for one in (run, again)]
        assert rates[0] == rates[1]

    def test_another_step_has_the_rates_of_the_same_tokens(self, tmp_path):
        from runs import EPOCHS, LENGTHS
        from runs import loader as causal

        self.made(tmp_path / "a", save_strategy="steps", save_steps=5, max_steps=-1).train()
        again = self.made(tmp_path / "b", data=causal(accumulation=1), gradient_accumulation_steps=1)
        again.train(resume_from_checkpoint=str(tmp_path / "a" / "checkpoint-5"))
        lines = [line for line in again.state.log_history if "loss" in line]
        assert len(lines) > 2 * 13  # steps of half the size, from the fifth on
        total = EPOCHS * LENGTHS.sum()
        assert (again.lr_scheduler.total, lines[-1]["tokens_seen"]) == (total, total)
        for before, line in itertools.pairwise(lines):
            wished = 1e-2 * wanted(again.schedule, before["tokens_seen"], total)
            assert line["learning_rate"] == pytest.approx(wished, rel=1e-12)

    def test_training_on_begins_the_schedule_anew(self, tmp_path):
        run = self.made(tmp_path, max_steps=4)
        run.train()
        run.train()
        rates = [line["learning_rate"] for line in run.state.log_history if "loss" in line]
        assert rates[0] == 0.0
        assert len(rates) == 4

    def test_two_schedules_are_refused(self, tmp_path):
        for how in ({"warmup_steps": 3}, {"lr_scheduler_type": "cosine"}):
            with pytest.raises(OptionError, match=f"two schedules of the learning rate.*{next(iter(how))}"):
                self.made(tmp_path, **how)

    def test_lamb_without_any_decay_is_refused(self, tmp_path):
        pytest.importorskip("accelerate")
        from runs import arguments, model
        from runs import loader as causal

        from nopad.training import PackedTrainer

        args = arguments(tmp_path)
        run = PackedTrainer(model(), args, train_dataset=causal(), optimizer_cls_and_kwargs=Lamb.of(args), quiet=True)
        with pytest.raises(OptionError, match="weight_decay is 0 in every group"):
            run.train()
