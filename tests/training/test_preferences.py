"""Chats, rewards, DPO and embeddings in the trainers: TRL's with nopad in front, and transformers'."""

from __future__ import annotations

import copy
import inspect
import logging
import re

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("trl", reason="TRL is not installed")

import torch
import transformers
import trl
from runs import arguments
from tests.tasks.templates import chat, tokenizer
from tests.tasks.tiny import bert, llama, words
from transformers.trainer_pt_utils import LabelSmoother

import nopad
from nopad.errors import OptionError
from nopad.tasks import DPO, CausalLM, Chat, Contrastive, Pairs, reference_logprobs
from nopad.training import PackedRewardTrainer, PackedSFTTrainer, PackedTrainer

pytestmark = pytest.mark.filterwarnings("ignore")

COUNT, CAPACITY = 24, 64


def texts(seed=0):
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.randint(1, 15, (COUNT, 3), generator=generator).tolist()
    return [[words(generator, size) for size in one] for one in sizes]


def config(folder, kind, **options):
    """A configuration of TRL's; one step of everything."""
    return arguments(folder, kind, bf16=False, gradient_checkpointing=False, **options)


def test_sft_on_chats_is_the_loss_of_single_chats(tmp_path):
    """The first loss: over what the assistant says, of all micro-batches, divided by how much that is."""
    records = [{"messages": chat(one, other)} for one, other, _ in texts()]
    task = Chat(tokenizer())
    model, examples = llama(task), task.encode(records)
    total, count = 0.0, 0
    for number, begin in enumerate(examples.sequences.begins):
        span = slice(begin, begin + examples.sequences.seq_lengths[number])
        ids = torch.from_numpy(examples.sequences.tokens["input_ids"][span]).long()
        labels = torch.from_numpy(examples.sequences.tokens["labels"][span]).long()
        each = torch.log_softmax(model(ids[None]).logits[0, :-1], -1).gather(1, ids[1:, None])[:, 0]
        total -= each[labels[1:] != -100].sum().item()
        count += int((labels[1:] != -100).sum())
    how = config(tmp_path, trl.SFTConfig, gradient_accumulation_steps=12, num_train_epochs=1)
    trainer = PackedSFTTrainer(
        model, how, task=task, train_dataset=records, eval_dataset=records, capacity=CAPACITY, quiet=True,
        processing_class=tokenizer(),
    )  # fmt: skip
    before = trainer.evaluate()
    assert trainer.evaluate(records)["eval_loss"] == before["eval_loss"]  # what TRL would prepare by itself
    assert trainer.evaluate({"own": records})["eval_own_loss"] == before["eval_loss"]
    trainer.train()
    assert trainer.state.global_step == 1
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert losses[0] == pytest.approx(total / count, rel=1e-5)
    assert before["eval_loss"] == pytest.approx(total / count, rel=1e-12)
    assert before["eval_perplexity"] == pytest.approx(2.718281828459045 ** (total / count), rel=1e-9)
    assert trainer.evaluate()["eval_loss"] < before["eval_loss"]


@pytest.mark.parametrize("kind", [PackedRewardTrainer, PackedTrainer])
def test_rewards_are_learned_from_pairs(tmp_path, kind):
    records = [{"prompt": " " + a, "chosen": " " + b, "rejected": " " + c} for a, b, c in texts()]
    task = Pairs(tokenizer())
    model, examples = bert(task), task.encode(records)
    rewards = []
    for number, begin in enumerate(examples.sequences.begins):
        span = slice(begin, begin + examples.sequences.seq_lengths[number])
        ids = torch.from_numpy(examples.sequences.tokens["input_ids"][span]).long()
        rewards.append(model(ids[None]).logits[0, 0])
    rewards = torch.stack(rewards)
    wanted = -torch.nn.functional.logsigmoid(rewards[::2] - rewards[1::2]).mean().item()
    options = {"gradient_accumulation_steps": 24, "num_train_epochs": 1, "per_device_train_batch_size": 1}
    if kind is PackedRewardTrainer:
        how, more = config(tmp_path, trl.RewardConfig, **options), {"processing_class": tokenizer()}
    else:
        how, more = arguments(tmp_path, **options), {}
    trainer = kind(
        model, how, task=task, train_dataset=records, eval_dataset=records, capacity=CAPACITY, quiet=True, **more
    )
    found = trainer.evaluate()
    assert found["eval_loss"] == pytest.approx(wanted, rel=1e-12)
    assert found["eval_accuracy"] == (rewards[::2] > rewards[1::2]).double().mean().item()
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert losses[0] == pytest.approx(wanted, rel=1e-5)


def test_rewards_need_a_task(tmp_path):
    how = config(tmp_path, trl.RewardConfig)
    made = nopad.PackedLoader([[1, 2], [3]], 8, rows=2, accumulation=2, last="fill")
    with pytest.raises(OptionError, match="rewards are learned from pairs"):
        PackedRewardTrainer(bert(Pairs(tokenizer())), how, train_dataset=made, processing_class=tokenizer())


@pytest.mark.parametrize(
    ("rewards", "option", "value"),
    [
        (True, "center_rewards_coefficient", 0.5),
        (True, "max_length", 8),
        (False, "max_length", 8),
        (False, "dataset_text_field", "words"),
        (False, "eos_token", "[SEP]"),
        (False, "pad_to_multiple_of", 8),
    ],
)
def test_options_that_would_do_nothing_are_refused(tmp_path, rewards, option, value):
    made = [{"prompt": a, "chosen": " " + b, "rejected": " " + c, "text": a} for a, b, c in texts()]
    given = {"train_dataset": made, "capacity": CAPACITY, "quiet": True}
    kind, config_kind = (PackedRewardTrainer, trl.RewardConfig) if rewards else (PackedSFTTrainer, trl.SFTConfig)
    if not hasattr(config_kind, option):
        pytest.skip(f"this TRL has no {option}")
    other = copy.deepcopy(tokenizer())
    how = config(tmp_path, config_kind, **{option: value})
    task = Pairs(other) if rewards else CausalLM(other)
    with pytest.raises(
        OptionError, match=re.escape(f"{option}={value!r} is about how TRL prepares data or computes its loss")
    ):
        kind(llama(task), how, task=task, processing_class=copy.deepcopy(other), **given)
    more = {option: value} if option in ("center_rewards_coefficient", "max_length") else {}
    if more:  # the task does it
        longer = {"over_long": "truncate"} if option == "max_length" else {}
        task = (Pairs if rewards else CausalLM)(other, **more, **longer)
        kind(llama(task), how, task=task, processing_class=copy.deepcopy(other), **given)


def test_a_function_that_formats_records_is_refused(tmp_path):
    task = CausalLM(tokenizer())
    with pytest.raises(OptionError, match="formatting_func is about how TRL prepares data"):
        PackedSFTTrainer(
            llama(task), config(tmp_path, trl.SFTConfig), task=task, train_dataset=[{"text": "is it"}] * 9,
            capacity=CAPACITY, formatting_func=str, processing_class=copy.deepcopy(tokenizer()),
        )  # fmt: skip


def test_dpo_begins_at_the_reference_and_learns(tmp_path):
    records = [{"prompt": chat(a)[:1], "chosen": chat(a, b)[1:], "rejected": chat(a, c)[1:]} for a, b, c in texts()]
    task = DPO(tokenizer())
    model = nopad.packed(llama(task))
    examples = reference_logprobs(model, task.encode(records), CAPACITY)
    options = {"gradient_accumulation_steps": 24, "num_train_epochs": 4, "per_device_train_batch_size": 1}
    trainer = PackedTrainer(
        model, arguments(tmp_path, **options), task=task, train_dataset=examples, eval_dataset=examples,
        capacity=CAPACITY, quiet=True,
    )  # fmt: skip
    found = trainer.evaluate()
    assert found["eval_loss"] == pytest.approx(0.6931471805599453, rel=1e-12)
    assert found["eval_rewards/chosen"] == pytest.approx(0, abs=1e-12)
    trainer.train()
    after = trainer.evaluate()
    assert after["eval_loss"] < 0.6
    assert after["eval_rewards/accuracies"] > 0.9
    fresh = PackedTrainer(model, arguments(tmp_path), task=task, train_dataset=records, capacity=CAPACITY, quiet=True)
    with pytest.raises(
        Exception, match="the batch has no reference_logp, so there is nothing to hold the model against"
    ):
        fresh.train()


def test_embeddings_are_trained_on_pairs(tmp_path):
    """Evaluations of the same weights agree, though the negatives are those of a batch."""
    records = [{"anchor": a, "positive": b} for a, b, _ in texts()]
    task = Contrastive(tokenizer())
    how = arguments(tmp_path, num_train_epochs=6, gradient_accumulation_steps=1)
    trainer = PackedTrainer(
        bert(task, "BertModel"), how, task=task, train_dataset=records, eval_dataset=records, capacity=128, quiet=True
    )
    before = trainer.evaluate()
    assert before["eval_loss"] == trainer.evaluate()["eval_loss"]
    trainer.train()
    after = trainer.evaluate()
    assert after["eval_loss"] < 0.7 * before["eval_loss"]
    assert after["eval_mrr"] > before["eval_mrr"]
    assert trainer.predict(records).predictions.shape == (2 * COUNT, 32)


@pytest.mark.parametrize(
    "options",
    [{"loss_type": "dft"}, {"label_smoothing_factor": 0.2}, {"loss_type": "dft", "label_smoothing_factor": 0.2}],
)
def test_an_evaluation_of_sft_is_of_the_loss_that_is_learned(tmp_path, options):
    """As TRL's own evaluation of the same chats in one padded batch, and as the first step of training."""
    records = [{"messages": chat(one, other)} for one, other, _ in texts()]
    task = Chat(tokenizer())
    model, made = llama(task), task.encode(records).sequences
    rows = [{name: column[begin : begin + length].tolist() for name, column in made.tokens.items()}
            for begin, length in zip(made.begins, made.seq_lengths, strict=True)]  # fmt: skip
    import datasets

    same = {"num_train_epochs": 1, "gradient_accumulation_steps": 24, "per_device_train_batch_size": 1, **options}
    how = config(tmp_path / "theirs", trl.SFTConfig, per_device_eval_batch_size=COUNT, **same)
    theirs = trl.SFTTrainer(
        copy.deepcopy(model), how, train_dataset=datasets.Dataset.from_list(rows), processing_class=tokenizer(),
        eval_dataset=datasets.Dataset.from_list(rows),
    )  # fmt: skip
    wanted = theirs.evaluate()["eval_loss"]

    def made_ours():
        return PackedSFTTrainer(
            model, config(tmp_path / "ours", trl.SFTConfig, **same), task=task, train_dataset=records,
            eval_dataset=records, capacity=CAPACITY, quiet=True, processing_class=tokenizer(),
        )  # fmt: skip

    if "loss_type" not in options and "num_items_in_batch" not in inspect.signature(LabelSmoother.__call__).parameters:
        with pytest.raises(OptionError, match="divides a smoothed loss by the tokens of each micro-batch"):
            made_ours()
        return
    ours = made_ours()
    found = ours.evaluate()
    assert found["eval_loss"] == pytest.approx(wanted, rel=1e-6)
    plain = torch.log(torch.tensor(found["eval_perplexity"])).item()
    assert abs(found["eval_loss"] - plain) > 1e-3  # the metric is of the plain loss
    ours.train()
    losses = [entry["loss"] for entry in ours.state.log_history if "loss" in entry]
    assert losses[0] == pytest.approx(found["eval_loss"], rel=1e-5)


def test_what_an_evaluation_leaves_out_is_said_before(tmp_path):
    """A router's loss depends on which sequences share a batch, so no evaluation has it."""
    sizes = {"vocab_size": 96, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "num_local_experts": 2, "pad_token_id": 0}
    torch.manual_seed(0)
    mixture = transformers.MixtralForCausalLM(transformers.MixtralConfig(**sizes, **heads)).double()
    how, said = config(tmp_path, trl.SFTConfig, router_aux_loss_coef=0.25), []
    records = [{"text": one[0]} for one in texts()]
    logger = transformers.utils.logging.get_logger("nopad.training.trl")
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    logger.addHandler(handler)
    try:
        PackedSFTTrainer(
            mixture, how, task=CausalLM(tokenizer()), train_dataset=records, capacity=64, quiet=True,
            processing_class=tokenizer(),
        )  # fmt: skip
    finally:
        logger.removeHandler(handler)
    assert [one for one in said if "0.25 times the loss that balances experts" in one and "eval_loss leaves" in one]
