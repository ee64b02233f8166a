"""The loader in transformers' Trainer in one process: options that contradict it, length, resume."""

from __future__ import annotations

import json
import shutil

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("accelerate")

import accelerate
import datasets
import numpy as np
import torch
import transformers
from runs import ACCUMULATION, EPOCHS, LENGTHS, ROWS, Seen, arguments, loader, model, tokenizer, watched

import nopad
from nopad import PackedLoader
from nopad.errors import FormatError, OptionError, PlanMismatchError, SourceError
from nopad.loading import causal
from nopad.loading.torch import TorchDataset
from nopad.training import PackedTrainer
from nopad.training.checkpoint import steps_of

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """An uninterrupted run with dropout, and checkpoints of it: in the first epoch, at its end, and in the second."""
    folder = tmp_path_factory.mktemp("whole")
    how = arguments(folder, save_strategy="steps", save_steps=1, num_train_epochs=EPOCHS)
    made = watched(PackedTrainer)(model(dropout=0.2), how, train_dataset=loader())
    made.train()
    return made, folder


def test_the_run_is_as_long_as_the_loader_says(whole):
    made, _ = whole
    steps = len(loader()) // ACCUMULATION
    assert steps == 13
    assert made.state.global_step == made.state.max_steps == EPOCHS * steps == len(made.losses)
    assert made.seen.tokens == (EPOCHS * LENGTHS).tolist()
    assert made.epochs == [epoch + step / steps for epoch in range(EPOCHS) for step in range(1, steps + 1)]
    assert made.num_examples(made.get_train_dataloader()) == LENGTHS.size
    plain = loader()
    assert made.seen.batches == [batch["input_ids"].tolist() for _ in range(EPOCHS) for batch in plain]
    assert made.losses[-1] < made.losses[0]


def test_epochs_of_unlike_length_are_trained_to_their_ends(tmp_path):
    def made(**changed):
        data = [np.full(length, number + 1) for number, length in enumerate(LENGTHS)]
        same = {"sequences": 4, "token_cap": 48, "accumulation": 2, "last": "fill", "collate": causal}
        return PackedLoader(data, **same | changed)

    steps = [made().steps_in(epoch) for epoch in range(4)]
    assert len(set(steps)) > 1
    how = arguments(tmp_path, num_train_epochs=4, per_device_train_batch_size=4)
    trainer = watched(PackedTrainer)(model(), how, train_dataset=made())
    trainer.train()
    assert trainer.seen.tokens == (4 * LENGTHS).tolist()
    assert trainer.state.global_step == trainer.state.max_steps == sum(steps)
    assert trainer.epochs[-1] == 4
    half = arguments(tmp_path, num_train_epochs=1.5, per_device_train_batch_size=4)
    trainer = watched(PackedTrainer)(model(), half, train_dataset=made())
    trainer.train()
    assert trainer.state.global_step == steps[0] + -(-steps[1] // 2)


@pytest.mark.parametrize(("step", "workers"), [(5, 0), (13, 0), (17, 2)])
def test_a_run_that_was_cut_goes_on_exactly(whole, tmp_path, step, workers):
    first, folder = whole
    torch.manual_seed(5)
    how = arguments(tmp_path, dataloader_num_workers=workers)
    again = watched(PackedTrainer)(model(dropout=0.2), how, train_dataset=loader())
    again.train(resume_from_checkpoint=str(folder / f"checkpoint-{step}"))
    assert again.seen.batches == first.seen.batches[step * ACCUMULATION :]
    assert again.losses[step:] == first.losses[step:]
    assert again.epochs == first.epochs
    assert again.state.global_step == first.state.global_step
    assert again.args.ignore_data_skip is False
    for ours, theirs in zip(again.model.parameters(), first.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize(
    ("step", "accumulation", "steps"),
    # 51 packs an epoch, 4 of them in each of the steps before; then 2, or 8
    [(5, 1, 16 + 26), (17, 1, 18), (5, 4, 4 + 7), (17, 4, 5), (13, 4, 7)],
)
def test_another_step_goes_on_with_what_was_not_seen(whole, tmp_path, step, accumulation, steps):
    first, folder = whole
    how = arguments(tmp_path, gradient_accumulation_steps=accumulation)
    again = watched(PackedTrainer)(model(), how, train_dataset=loader(accumulation=accumulation))
    again.train(resume_from_checkpoint=str(folder / f"checkpoint-{step}"))
    assert again.state.global_step == again.state.max_steps == step + steps
    assert len(again.seen.batches) == steps * accumulation
    assert again.epochs[-1] == EPOCHS == again.state.num_train_epochs
    assert again.epochs == sorted(set(again.epochs))
    before = Seen()
    for batch in first.seen.batches[: step * ACCUMULATION]:
        before.counts.update(number for row in batch for number in row if number)
    assert (np.add(before.tokens, again.seen.tokens) == EPOCHS * LENGTHS).all()


def test_the_last_checkpoint_is_found_and_has_nothing_left(whole, tmp_path):
    _, folder = whole
    again = watched(PackedTrainer)(model(), arguments(folder), train_dataset=loader())
    again.train(resume_from_checkpoint=True)
    assert again.seen.batches == []


def test_steps_or_more_epochs_on_a_finished_run(whole, tmp_path):
    first, folder = whole
    again = watched(PackedTrainer)(model(), arguments(tmp_path, num_train_epochs=2.5), train_dataset=loader())
    again.train(resume_from_checkpoint=str(folder / "checkpoint-26"))
    assert again.state.global_step == 26 + 7
    assert again.epochs[-1] == 2 + 7 / 13
    given = loader()
    again = watched(PackedTrainer)(model(), arguments(tmp_path, max_steps=15), train_dataset=given)
    again.train()
    assert again.seen.batches == first.seen.batches[: 15 * ACCUMULATION]
    again.train()  # goes on where the loader stands
    assert again.state.global_step == 15
    assert again.seen.batches[30:52] == first.seen.batches[30:]
    assert (given.epoch, given.steps_seen) == (2, 30)


def test_a_loader_without_a_length(whole, tmp_path, monkeypatch):
    """As of a stream: `max_steps` says how long training goes on."""

    def unknown(self):
        raise TypeError("a stream has no length")

    first, _ = whole
    monkeypatch.setattr(nopad.PackedLoader, "__len__", unknown)
    with pytest.raises(ValueError, match="max_steps"):
        PackedTrainer(model(), arguments(tmp_path), train_dataset=loader()).train()
    how = arguments(tmp_path, max_steps=16, save_strategy="steps", save_steps=14)
    made = watched(PackedTrainer)(model(), how, train_dataset=loader())
    made.train()
    assert made.seen.batches == first.seen.batches[: 16 * ACCUMULATION]
    again = watched(PackedTrainer)(model(), how, train_dataset=loader())
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-14"))
    assert again.seen.batches == first.seen.batches[14 * ACCUMULATION : 16 * ACCUMULATION]
    assert again.losses == made.losses


def test_each_trial_of_a_search_begins_anew(whole, tmp_path, monkeypatch):
    first, _ = whole
    monkeypatch.setattr("transformers.integrations.hp_params", dict)  # it knows trials of installed tools only
    made = watched(PackedTrainer)(model(), arguments(tmp_path, max_steps=3), train_dataset=loader())
    for _ in range(2):
        made.train(trial={"learning_rate": 1e-2})
    assert made.seen.batches == 2 * first.seen.batches[: 3 * ACCUMULATION]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("micro_step", "workers"),
    [(1, 0), (4, 0), (7, 0), (4, 1), *(pytest.param(step, 1, marks=pytest.mark.soak) for step in (1, 7))],
)
def test_training_again_after_an_exception_loses_nothing(whole, tmp_path, micro_step, workers):
    """What stops a step, in whichever micro-step, has not seen the step's sequences."""

    class Fails(watched(PackedTrainer)):
        fails = True

        def compute_loss(self, *args, **kwargs):
            if self.fails and self.seen.steps == micro_step:
                raise KeyboardInterrupt
            return super().compute_loss(*args, **kwargs)

    made = Fails(model(), arguments(tmp_path, dataloader_num_workers=workers), train_dataset=loader(), quiet=True)
    with pytest.raises(KeyboardInterrupt):
        made.train()
    taken = (micro_step - 1) // ACCUMULATION
    assert made.train_dataset.steps_seen == made.state.global_step == taken
    made.fails, before = False, made.seen.batches[: taken * ACCUMULATION]
    made.seen.batches = []
    made.train()
    assert before + made.seen.batches == whole[0].seen.batches


def test_an_epoch_that_a_callback_ends_is_over(tmp_path):
    class Short(transformers.TrainerCallback):
        def on_step_end(self, args, state, control, **_):
            control.should_epoch_stop = state.global_step == 4

    made = watched(PackedTrainer)(model(), arguments(tmp_path), train_dataset=loader(), callbacks=[Short()])
    made.train()
    plain = loader()
    expected = [batch["input_ids"].tolist() for batch, _ in zip(plain, range(4 * ACCUMULATION), strict=False)]
    plain.set_epoch(1)
    assert made.seen.batches == expected + [batch["input_ids"].tolist() for batch in plain]
    assert made.epochs[-1] == 2


def test_a_loader_that_has_seen_all_epochs_is_refused(tmp_path):
    given = loader()
    given.set_epoch(2)
    with pytest.raises(OptionError, match=r"has seen 2 epochs, and num_train_epochs is 2: nothing is left"):
        PackedTrainer(model(), arguments(tmp_path), train_dataset=given).train()
    given = loader()
    next(iter(given))
    with pytest.raises(OptionError, match="stands in the middle of a step, after 1 of 2 micro-steps"):
        PackedTrainer(model(), arguments(tmp_path), train_dataset=given).train()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gradient_accumulation_steps": 4}, "gradient_accumulation_steps is 4, and the loader's accumulation is 2"),
        (
            {"per_device_train_batch_size": 8},
            "per_device_train_batch_size is 8, and the loader's number of rows or .* 2",
        ),
        ({"auto_find_batch_size": True}, "auto_find_batch_size is the loader's business"),
        ({"dataloader_drop_last": True}, "dataloader_drop_last is the loader's business"),
        ({"train_sampling_strategy": "group_by_length"}, "train_sampling_strategy is the loader's business"),
    ],
)
def test_options_that_contradict_the_loader_are_refused(tmp_path, options, message):
    with pytest.raises(OptionError, match=message):
        PackedTrainer(model(), arguments(tmp_path, **options), train_dataset=loader())


def test_a_stream_on_several_ranks_is_refused(tmp_path):
    """Every rank has a state of its own, and a checkpoint holds one."""
    how = {"rows": ROWS, "accumulation": ACCUMULATION, "rank": 0, "world_size": 2, "exhausted": "repeat"}
    ours = nopad.PackedLoader(lambda: iter([{"input_ids": [1, 2]}, {"input_ids": [3]}]), 8, **how)
    with pytest.raises(OptionError, match="every rank of a stream has its own"):
        PackedTrainer(model(), arguments(tmp_path, max_steps=2), train_dataset=ours)


def test_another_number_of_ranks_is_refused(tmp_path):
    with pytest.raises(OptionError, match="different data is 1, and the loader's world_size is 2"):
        PackedTrainer(model(), arguments(tmp_path), train_dataset=loader(rank=0, world_size=2))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dataloader_persistent_workers": True, "dataloader_num_workers": 1}, "persistent_workers is the loader's"),
        ({"dataloader_in_order": False}, "in_order=False would change the order"),
    ],
)
def test_options_of_its_data_loader_that_would_change_batches_are_refused(tmp_path, options, message):
    for name in options:
        if not hasattr(transformers.TrainingArguments, name):
            pytest.skip(f"this transformers has no {name}")
    with pytest.raises(OptionError, match=message):
        PackedTrainer(model(), arguments(tmp_path, **options), train_dataset=loader()).train()


def test_what_would_do_nothing_or_is_half_a_loader_is_refused(tmp_path):
    with pytest.raises(OptionError, match="data_collator would do nothing"):
        PackedTrainer(model(), arguments(tmp_path), nopad.PackedBatch.from_features, loader())
    for wrapped in (loader().dataloader(), TorchDataset(loader())):
        with pytest.raises(OptionError, match="give the loader itself"):
            PackedTrainer(model(), arguments(tmp_path), train_dataset=wrapped)


def test_checkpoints_of_others_are_refused(whole, tmp_path):
    _, folder = whole
    made = PackedTrainer(model(), arguments(tmp_path), train_dataset=loader(seed=1))
    with pytest.raises(PlanMismatchError, match="seed is 1 and was 0"):
        made.train(resume_from_checkpoint=str(folder / "checkpoint-5"))
    made = PackedTrainer(model(), arguments(tmp_path), train_dataset=loader())
    with pytest.raises(FormatError, match=r"has no nopad_loader.json, so it was not saved in training"):
        made.train(resume_from_checkpoint=str(tmp_path))
    (tmp_path / "nopad_loader.json").write_text("{")
    with pytest.raises(FormatError, match=r"nopad_loader.json is no JSON"):
        made.train(resume_from_checkpoint=str(tmp_path))


@pytest.mark.parametrize("content", ["{", "[1]", '{"global_step"', "\xff", "[" * 100_000])
@pytest.mark.parametrize("name", ["config.json", "trainer_state.json", "nopad_loader.json"])
def test_a_damaged_file_of_a_checkpoint_is_named(whole, tmp_path, name, content):
    """The errors of `json` and of Python came through, which name no file."""
    _, folder = whole
    place = tmp_path / "checkpoint-5"
    shutil.copytree(folder / place.name, place)
    (place / name).write_bytes(content.encode("latin-1"))
    made = PackedTrainer(model(), arguments(tmp_path), train_dataset=loader())
    with pytest.raises(FormatError, match=name if name != "nopad_loader.json" else ""):
        made.train(resume_from_checkpoint=str(place))


@pytest.mark.parametrize("steps", ['"five"', "null", "2.5"])
def test_a_checkpoint_without_a_number_of_steps_is_refused(tmp_path, steps):
    with pytest.raises(FormatError, match=r"has no trainer_state.json, so it is no whole checkpoint"):
        steps_of(tmp_path)
    (tmp_path / "trainer_state.json").write_text(f'{{"global_step": {steps}}}')
    with pytest.raises(FormatError, match="as global_step, which is a number of steps"):
        steps_of(tmp_path)
    (tmp_path / "trainer_state.json").write_text('{"steps": 5}')
    with pytest.raises(FormatError, match=r"trainer_state.json is not what transformers' Trainer writes"):
        steps_of(tmp_path)


def test_a_checkpoint_holds_the_loaders_state(whole):
    _, folder = whole
    state = json.loads((folder / "checkpoint-5" / "nopad_loader.json").read_text())
    plain = loader()
    for _ in zip(range(5 * ACCUMULATION), plain, strict=False):
        pass
    assert state == plain.state_dict()


def test_other_data_are_the_trainers_own_business(tmp_path):
    rows = [{"input_ids": [n + 1] * 4, "labels": [n + 1] * 4} for n in range(8)]
    how = arguments(tmp_path, remove_unused_columns=False, num_train_epochs=1)

    def collate(features):
        return nopad.PackedBatch.from_features(features, causal=True)

    made = PackedTrainer(model(), how, collate, rows, eval_dataset=rows)
    made.train()
    assert made.state.global_step == 8 // ROWS // ACCUMULATION
    assert "eval_loss" in made.evaluate()
    assert not (tmp_path / "nopad_loader.json").exists()


@pytest.mark.parametrize("prepared", ["loader", "dataset"])
def test_accelerate_is_kept_from_sharing_batches_out_again(prepared):
    given = loader()
    batches = given.dataloader() if prepared == "loader" else torch.utils.data.DataLoader(TorchDataset(given), None)
    wrapped = accelerate.Accelerator(cpu=True).prepare(batches)
    with pytest.raises(OptionError, match=r"a second time; leave the loader out of accelerator.prepare"):
        next(iter(wrapped))
    assert sum(1 for _ in given.dataloader()) == len(given)


def test_transformers_own_trainer_is_told_which_one_to_use(tmp_path):
    with pytest.raises(OptionError, match=r"train with nopad.training.PackedTrainer"):
        transformers.Trainer(model(), arguments(tmp_path), train_dataset=loader()).train()
    with pytest.raises(OptionError, match=r"train with nopad.training.PackedTrainer"):
        transformers.Trainer(model(), arguments(tmp_path), train_dataset=TorchDataset(loader())).train()


def test_trl_does_not_pack_or_label_a_loader(tmp_path):
    trl = pytest.importorskip("trl", reason="TRL is not installed")
    from nopad.training import PackedSFTTrainer

    for asked in ("packing", "completion_only_loss"):
        how = arguments(tmp_path, kind=trl.SFTConfig, bf16=False, **{asked: True})
        with pytest.raises(OptionError, match=f"{asked} is about how TRL prepares data"):
            PackedSFTTrainer(model(), how, train_dataset=loader(), processing_class=tokenizer())
    how = arguments(tmp_path, kind=trl.SFTConfig, bf16=False, assistant_only_loss=True)
    with pytest.raises(OptionError, match="assistant_only_loss is about how TRL prepares data"):  # before TRL looks
        PackedSFTTrainer(model(), how, train_dataset=loader(), processing_class=tokenizer())


def test_trl_shows_nothing_of_its_placeholder(tmp_path, capfd):
    """TRL would say that it truncates and drops examples: of the one that stands for the data."""
    trl = pytest.importorskip("trl", reason="TRL is not installed")
    from nopad.tasks import CausalLM
    from nopad.training import PackedSFTTrainer

    datasets.enable_progress_bars()
    how = arguments(tmp_path, kind=trl.SFTConfig, bf16=False)
    rows = datasets.Dataset.from_dict({"input_ids": [[3, 4, 5]] * 2})
    trl.SFTTrainer(model(), how, train_dataset=rows, processing_class=tokenizer())
    assert "examples/s" in capfd.readouterr().err
    task, records = CausalLM(tokenizer()), [{"text": "is it red ?"}] * 4
    PackedSFTTrainer(model(), how, task=task, train_dataset=records, eval_dataset=records, capacity=64, quiet=True)
    assert "examples/s" not in capfd.readouterr().err
    assert not datasets.are_progress_bars_disabled()


def test_trl_gets_the_tokenizer_of_the_task(tmp_path):
    trl = pytest.importorskip("trl", reason="TRL is not installed")
    from nopad.tasks import CausalLM
    from nopad.training import PackedSFTTrainer

    task, records = CausalLM(tokenizer()), [{"text": "is it red ?"}] * 4
    how = arguments(tmp_path, kind=trl.SFTConfig, bf16=False)
    made = PackedSFTTrainer(model(), how, task=task, train_dataset=records, capacity=64, quiet=True)
    assert made.processing_class is task.tokenizer


def test_records_without_a_task_are_told_of_tasks(tmp_path):
    chats = [{"messages": [{"role": "user", "content": "hi"}]}] * 4
    with pytest.raises(SourceError, match=r'columns "messages".* by a task: task=nopad.tasks.Chat'):
        PackedTrainer(model(), arguments(tmp_path), train_dataset=chats, capacity=64)
