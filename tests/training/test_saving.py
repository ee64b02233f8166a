"""When a run of `nopad train` saves, what is said about it, and what a rate looks like."""

from types import SimpleNamespace

import pytest
from transformers import TrainingArguments

from nopad.training.progress import Logged
from nopad.training.saving import save_each_epoch, saves, way_on


def made(**trainer):
    return SimpleNamespace(trainer=trainer), TrainingArguments("unused", use_cpu=True, report_to=[], **trainer)


@pytest.fixture
def loader():
    import nopad

    return nopad.PackedLoader([[1, 2, 3]] * 40, 8, rows=1)  # 20 steps an epoch


def test_a_short_run_saves_at_the_end_of_each_epoch(loader):
    config, args = made(num_train_epochs=3)
    save_each_epoch(config, args, loader)
    assert (args.save_strategy, args.save_total_limit) == ("epoch", 2)
    assert saves(args, 60) == (
        "a checkpoint at the end of each epoch; the last 2 are kept (trainer.save_strategy, trainer.save_total_limit)"
    )
    config, args = made(num_train_epochs=3, save_total_limit=5)
    save_each_epoch(config, args, loader)
    assert (args.save_strategy, args.save_total_limit) == ("epoch", 5)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"num_train_epochs": 1}, "no checkpoint before the end"),
        ({"num_train_epochs": 26}, "a checkpoint every 500 steps (trainer.save_steps)"),
        ({"max_steps": 60}, "no checkpoint before the end"),
        ({"num_train_epochs": 3, "save_steps": 25}, "a checkpoint every 25 steps (trainer.save_steps)"),
        ({"num_train_epochs": 3, "save_steps": 0.5}, "a checkpoint every 30 steps (trainer.save_steps)"),
        ({"num_train_epochs": 3, "save_steps": 100}, "no checkpoint before the end"),
        ({"num_train_epochs": 3, "save_strategy": "no"}, "no checkpoint before the end"),
        ({"num_train_epochs": 1, "save_strategy": "epoch"}, "no checkpoint before the end"),
    ],
)
def test_what_the_user_said_and_long_runs_stay(loader, given, said):
    config, args = made(**given)
    before = args.save_strategy, args.save_steps, args.save_total_limit
    save_each_epoch(config, args, loader)
    assert (args.save_strategy, args.save_steps, args.save_total_limit) == before
    steps = given.get("max_steps") or 20 * given["num_train_epochs"]
    assert saves(args, steps).startswith(said)


def test_a_run_without_a_checkpoint_says_so(tmp_path):
    assert way_on(tmp_path) == (
        "there is no checkpoint yet: --resume begins again (trainer.save_steps says how often one is saved)"
    )


def test_rates_have_three_digits():
    def said(sequences, tokens):
        return str(Logged(step=1, steps=2, sequences=sequences, tokens=tokens))

    assert said(0.1666, 85.25) == "step 1/2  0.167 sequences/s  85.2 tokens/s"
    assert said(9.999, 99.99) == "step 1/2  10.0 sequences/s  100 tokens/s"
    assert said(1234.5, 0.0) == "step 1/2  1,234 sequences/s  0.00 tokens/s"
