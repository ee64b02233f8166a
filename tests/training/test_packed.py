"""What training on packs must not change: losses, gradients, evaluation, predictions. And what failing looks like."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("accelerate")

import contextlib
import copy
from dataclasses import replace

import accelerate
import datasets
import numpy as np
import torch
import transformers
from runs import LENGTHS, arguments, classified, classify_records
from runs import loader as causal_loader
from runs import model as causal_model
from safetensors.numpy import save_file
from tests.tasks.tiny import bert, llama, tokenizer

import nopad
from nopad.errors import DeviceMemoryError, FormatError, LossError, OptionError, UnsupportedModelError
from nopad.model.safety import is_packed, state_of
from nopad.tasks import Classification, Examples, OfTokens
from nopad.tasks.registry import load_task, task_named
from nopad.tasks.settings import stored_task
from nopad.training import PackedMixin, PackedTrainer, load_batch
from nopad.training.data import fingerprint_of
from nopad.training.effects import effects
from nopad.training.trouble import save_batch

pytestmark = pytest.mark.filterwarnings("ignore")

CAPACITY = 64


def alone(model, made):
    """Logits and losses of each record by itself, through the model as it is."""
    logits, losses = [], []
    for record in made:
        inputs = tokenizer()(record["text"], return_tensors="pt")
        logits.append(model(**inputs).logits[0])
        losses.append(-torch.log_softmax(logits[-1], 0)[record["label"]])
    return torch.stack(logits), torch.stack(losses)


class Gradients(transformers.TrainerCallback):
    """Keeps the gradients of the first step, before the optimiser uses them."""

    def __init__(self):
        self.found = None

    def on_pre_optimizer_step(self, args, state, control, model=None, **_):
        if self.found is None:
            self.found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def trainer(folder, model=None, made=None, kind=PackedTrainer, *, callbacks=(), how=None, **options):
    options = {
        "task": classified(),
        "train_dataset": classify_records() if made is None else made,
        "quiet": True,
    } | options
    options.setdefault("capacity", CAPACITY)
    return kind(model or bert(classified()), arguments(folder, **(how or {})), callbacks=list(callbacks), **options)


def test_a_step_is_the_mean_over_its_sequences(tmp_path):
    """All sequences in one step, of unequal micro-batches: its loss and gradients are those of the plain mean."""
    model, made, kept = bert(classified()), classify_records(), Gradients()
    _, losses = alone(model, made)
    losses.mean().backward()
    wanted = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    how = {"gradient_accumulation_steps": 7, "num_train_epochs": 1, "max_grad_norm": 0.0}
    run = trainer(tmp_path, model, made, callbacks=[kept], how=how)
    run.train()
    assert run.state.global_step == 1
    assert {batch.layout.sequences for batch in run.train_dataset} != {1}
    assert run.state.log_history[0]["loss"] == pytest.approx(losses.mean().item(), rel=1e-6)  # logged in float32
    assert run.state.log_history[0]["sequences_seen"] == len(made)
    assert kept.found.keys() == wanted.keys()
    for name, value in wanted.items():
        assert (value - kept.found[name]).abs().max() <= 1e-12 * max(value.abs().max(), 1e-3), name


def test_evaluation_is_that_of_single_sequences(tmp_path):
    model, made = bert(classified()), classify_records()
    logits, losses = alone(model.eval(), made)
    labels = np.array([record["label"] for record in made])
    run = trainer(tmp_path, model, made)
    for evaluated in (made, classified().encode(made)):
        found = run.evaluate(evaluated)
        assert found["eval_loss"] == pytest.approx(losses.mean().item(), rel=1e-12)
        assert found["eval_accuracy"] == np.mean(logits.argmax(1).numpy() == labels)
    predicted = run.predict(made)
    np.testing.assert_allclose(predicted.predictions, logits.detach().numpy(), rtol=0, atol=1e-12)
    assert predicted.label_ids.tolist() == labels.tolist()
    assert predicted.metrics["test_loss"] == pytest.approx(losses.mean().item(), rel=1e-12)


def test_a_causal_model_is_evaluated_and_predicts_token_by_token(tmp_path):
    model = causal_model().double()
    run = PackedTrainer(
        model, arguments(tmp_path), train_dataset=causal_loader(), eval_dataset=causal_loader(), quiet=True
    )
    total = count = 0
    nopad.unpacked(model).eval()
    stored = [np.full(length, n + 1) for n, length in enumerate(LENGTHS)]
    first = None
    for ids in stored:
        one = torch.from_numpy(ids)[None]
        logits = model(one).logits[0]
        first = logits if first is None else first
        total += -torch.log_softmax(logits[:-1], -1).gather(1, one[0, 1:, None]).sum().item()
        count += len(ids) - 1
    nopad.packed(model)
    assert run.evaluate()["eval_loss"] == pytest.approx(total / count, rel=1e-12)
    found = run.predict(causal_loader())
    assert found.predictions.shape[:2] == (len(stored), max(map(len, stored)))
    np.testing.assert_allclose(found.predictions[0, : len(stored[0])], first.detach().numpy(), atol=1e-12)
    assert found.label_ids[3, : len(stored[3])].tolist() == [-100, *stored[3][1:]]


def test_the_loader_that_is_trained_on_may_be_evaluated_on(tmp_path):
    """Also in the middle of training; both see all of it, and evaluations of the same weights agree to the bit."""
    made = classified().loader(classify_records(), CAPACITY, rows=2, accumulation=2, last="fill")
    how = {"eval_strategy": "steps", "eval_steps": 1, "num_train_epochs": 2}
    run = trainer(tmp_path, made=made, eval_dataset=made, capacity=None, how=how)
    run.train()
    losses = [entry["eval_loss"] for entry in run.state.log_history if "eval_loss" in entry]
    assert len(losses) == run.state.global_step == made.steps_seen
    assert made.sequences_seen == 2 * len(classify_records())
    assert run.evaluate()["eval_loss"] == run.evaluate()["eval_loss"] == losses[-1]


def test_an_evaluation_sees_what_its_data_are_now(tmp_path):
    made = classify_records(9)
    run = trainer(tmp_path, eval_dataset=made, loading={"last": "drop", "accumulation": 2})
    before = run.predict(made).predictions
    made.append(made.pop(0))
    assert np.array_equal(run.predict(made).predictions, np.roll(before, -1, axis=0))
    made.append(classify_records()[20])
    assert len(run.predict(made).predictions) == 10
    assert len(run.predict(classify_records(5)).predictions) == 5
    assert [one[0] is made for one in run._evaluated] == [True]  # what is not its own is not kept
    kept = run._evaluated[0][2]
    run.evaluate()
    assert run._evaluated[0][2] is kept


def test_predictions_of_several_sources_are_in_their_order(tmp_path):
    from nopad.loading import Mixture

    first, second = classify_records(7), classify_records(6, seed=1)
    parts = {name: classified().encode(made).sequences for name, made in (("a", first), ("b", second))}
    mixed = nopad.PackedLoader(Mixture(parts), CAPACITY, rows=2, last="fill")
    with torch.no_grad():
        wanted = alone(bert(classified()).eval(), first + second)[0].numpy()
    found = trainer(tmp_path).predict(mixed)
    assert np.abs(found.predictions - wanted).max() < 1e-12
    assert found.label_ids.tolist() == [record["label"] for record in first + second]


@pytest.mark.parametrize("compiled", [False, True])
def test_empty_rows_are_computed_only_for_compiled_layers(tmp_path, compiled):
    model = bert(classified())
    if compiled:
        model.bert.encoder.layer[0].compile(backend="eager")
    run = trainer(tmp_path, model, eval_dataset=classify_records(), how={"per_device_train_batch_size": 3})
    shapes = [batch["input_ids"].shape for batch in run.train_dataset]  # 10 packs, in steps of 2 x 3
    assert shapes == [(3, CAPACITY)] * 2 + [(3 if compiled else 2, CAPACITY)] * 2
    assert run.train_dataset.sequences_seen == len(classify_records())
    rows = [batch["input_ids"].shape[0] for batch in run.get_eval_dataloader()]
    assert (min(rows) == max(rows)) == compiled


def test_an_evaluation_leaves_nothing_out(tmp_path):
    dropping = classified().loader(classify_records(), CAPACITY, rows=4)
    assert dropping.summary().left_out[1]
    with pytest.raises(OptionError, match="an evaluation is of all sequences, and this loader leaves out"):
        trainer(tmp_path).evaluate(dropping)


def test_logits_of_minus_infinity_are_kept(tmp_path):
    from nopad.tasks import Classification

    task = Classification(tokenizer(), 5)
    model = bert(task)
    with torch.no_grad():
        model.classifier.bias[1] = -torch.inf
    made = [{"text": text, "label": 0} for text in ("is", "is it", "is it why not")]  # of fewer tokens than classes
    found = trainer(tmp_path, model, made, task=task).predict(made).predictions
    assert np.isneginf(found[:, 1]).all()
    assert np.isfinite(found[:, [0, 2, 3, 4]]).all()
    assert (found[:, [0, 2, 3, 4]] != -100).all()


def test_what_is_kept_in_place_of_logits_has_an_entry_per_sequence(tmp_path):
    def mean(logits, labels):
        return logits.mean(0)

    with pytest.raises(OptionError, match=r"preprocess_logits_for_metrics gave \[3\] for \d+ sequences"):
        trainer(tmp_path, preprocess_logits_for_metrics=mean).predict(classify_records())


def test_what_is_cut_is_said(tmp_path, caplog):
    from nopad.tasks import Classification

    task = Classification(tokenizer(), ["bad", "fair", "good"], max_length=6, over_long="drop")
    transformers.utils.logging.get_logger("nopad").propagate = True
    trainer(tmp_path, task=task)
    assert "37 records: " in caplog.text
    assert re.search(r"training data: 37 records: .* dropped$", caplog.text, re.MULTILINE)


def test_a_stream_is_packed_as_it_comes(tmp_path):
    def rows():
        yield from ({"input_ids": [n % 90 + 1] * (n % 9 + 1)} for n in range(100))

    how = arguments(tmp_path, max_steps=3)
    run = PackedTrainer(
        causal_model(), how, train_dataset=rows, capacity=32, loading={"exhausted": "repeat"}, quiet=True
    )
    run.train()
    assert run.state.global_step == 3
    assert run.train_dataset.is_stream


def test_metrics_of_ones_own_get_arrays_in_the_order_of_the_input(tmp_path):
    model, made, seen = bert(classified()), classify_records(), []

    def metrics(prediction):
        seen.append(prediction)
        return {"share": float(np.mean(prediction.predictions == prediction.label_ids))}

    run = trainer(
        tmp_path,
        model,
        made,
        compute_metrics=metrics,
        preprocess_logits_for_metrics=lambda logits, labels: logits.argmax(-1),
        eval_dataset={"same": made, "half": made[:18]},
    )
    found = run.evaluate()
    guess = alone(model.eval(), made)[0].argmax(1).tolist()
    assert [one.predictions.tolist() for one in seen] == [guess, guess[:18]]
    assert found["eval_half_share"] == found["eval_half_accuracy"]
    assert found["eval_same_loss"] != found["eval_half_loss"]


def test_the_best_checkpoint_is_loaded_at_the_end(tmp_path):
    made = classify_records()
    how = {"eval_strategy": "epoch", "save_strategy": "epoch", "load_best_model_at_end": True, "num_train_epochs": 3}
    how |= {"metric_for_best_model": "eval_loss", "gradient_accumulation_steps": 1}
    run = trainer(tmp_path, bert(classified()).float(), made, eval_dataset=made[:20], how=how)
    run.train()
    losses = [entry["eval_loss"] for entry in run.state.log_history if "eval_loss" in entry]
    assert len(losses) == 3
    assert run.evaluate()["eval_loss"] == pytest.approx(min(losses), rel=1e-5)


def test_other_ways_to_bring_a_model(tmp_path):
    made = classify_records(12)
    run = PackedTrainer(
        args=arguments(tmp_path),
        model_init=lambda: bert(classified()),
        task=classified(),
        train_dataset=made,
        capacity=CAPACITY,
        quiet=True,
    )
    run.train()
    assert run.state.global_step > 0
    peft = pytest.importorskip("peft")
    lora = peft.LoraConfig(task_type="SEQ_CLS", r=4, target_modules=["query", "value"])
    run = trainer(tmp_path, peft.get_peft_model(bert(classified()).float(), lora), made)
    run.train()
    assert run.state.log_history[0]["loss"] > 0


def test_a_model_that_trains_without_packs_is_left_as_it_is(tmp_path):
    """A model of `model_init` was made pack-safe, or refused where that cannot be."""
    rows = [{"input_ids": [2, number % 9 + 9, 3], "label": number % 3} for number in range(8)]
    collate = transformers.DataCollatorWithPadding(tokenizer())
    run = PackedTrainer(
        args=arguments(tmp_path, num_train_epochs=1, remove_unused_columns=False),
        model_init=lambda: bert(classified()).float(),
        data_collator=collate,
        train_dataset=rows,
    )
    assert not is_packed(run.model)
    run.train()
    assert run.state.global_step
    assert not is_packed(run.model)


def test_each_model_of_model_init_is_made_pack_safe(tmp_path):
    """Also where packs come later than the trainer: in an evaluation."""
    made = classify_records(12)
    how = {"args": arguments(tmp_path), "task": classified(), "capacity": CAPACITY, "quiet": True}
    run = PackedTrainer(model_init=lambda: bert(classified()), train_dataset=made, **how)
    first = run.model
    assert is_packed(first)
    run.train()
    assert run.model is not first
    assert is_packed(run.model)
    later = PackedTrainer(model_init=lambda: bert(classified()), **how)
    assert later.evaluate(made)["eval_loss"] > 0
    assert is_packed(later.model)


def test_a_loss_that_is_not_finite_stops_before_the_optimiser_and_keeps_its_batch(tmp_path):
    model, made = bert(classified()), classify_records()
    with torch.no_grad():
        bad = tokenizer().convert_tokens_to_ids("Paris")
        model.bert.embeddings.word_embeddings.weight[bad] = torch.inf
    before = {name: value.clone() for name, value in model.state_dict().items()}
    run = trainer(tmp_path, model, made, how={"max_grad_norm": 0.0, "logging_nan_inf_filter": True})
    with pytest.raises(LossError, match=r"step 1: the loss is nan in micro-batch \d .*nopad_batch_0.safetensors"):
        run.train()
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name
    kept = load_batch(tmp_path / "nopad_batch_0.safetensors")
    assert kept.layout.form == "rows"
    assert (np.isin(kept["input_ids"], bad)).any()
    assert not classified().objective.step(model, kept)[0].isfinite()
    sequences = classified().encode(made).sequences
    for ids, number in zip(kept.unpack_tokens(kept["input_ids"]), kept.records["seq_index"], strict=True):
        assert ids.tolist() == sequences.part(number, number + 1).tokens["input_ids"].tolist()
    (tmp_path / "other.safetensors").write_bytes(b"no")
    with pytest.raises(FormatError, match="is no batch that nopad kept"):
        load_batch(tmp_path / "other.safetensors")


@pytest.mark.parametrize("facts", ["[" * 60_000, "1" * 5000, "[]", '{"": 1}', "x"], ids=lambda facts: facts[:4])
def test_a_file_with_other_facts_is_no_batch(tmp_path, facts):
    save_file({"a": np.zeros(1)}, tmp_path / "a.safetensors", {"nopad": facts})
    with pytest.raises(FormatError, match="is no batch that nopad kept"):
        load_batch(tmp_path / "a.safetensors")


@pytest.mark.parametrize("form", [nopad.Flat(), nopad.Rows(4)])
def test_a_kept_batch_that_was_damaged_is_refused(tmp_path, form):
    """Wherever a bit is flipped: some damaged layouts are sound ones of other sequences."""
    path = tmp_path / "a.safetensors"
    batch = nopad.PackedBatch.from_sequences([[7, 8], [5], [6, 6]], form, columns={"x": [[1.5, 2], [3.5], [4, 5]]})
    save_batch(path, batch)
    assert torch.equal(load_batch(path)["x"], batch["x"])
    sound = path.read_bytes()
    for at in range(8, len(sound), 13):
        changed = bytearray(sound)
        changed[at] ^= 1 << at % 8
        path.write_bytes(changed)
        with contextlib.suppress(FormatError):
            kept = load_batch(path)
            assert kept.keys() == batch.keys(), at
            assert all(torch.equal(kept[name], batch[name]) for name in ("input_ids", "x")), at
            assert kept.layout.same_places(batch.layout), at


def test_a_kept_batch_knows_which_columns_are_per_sequence(tmp_path):
    batch = nopad.PackedBatch.from_sequences([[7, 8], [5]], nopad.Rows(2), sequence_columns={"y": [[1, 2], [3, 4]]})
    save_batch(tmp_path / "a.safetensors", batch)
    assert "y_segment_ids" not in load_batch(tmp_path / "a.safetensors").as_grain()


def test_a_kept_batch_with_a_decoder_runs_as_it_was(tmp_path):
    torch.manual_seed(0)
    sizes = {"vocab_size": 40, "d_model": 16, "max_position_embeddings": 16, "decoder_start_token_id": 0}
    sides = {f"{side}_{name}": 2 for side in ("encoder", "decoder") for name in ("layers", "attention_heads")}
    config = transformers.BartConfig(**sizes, **sides, encoder_ffn_dim=16, decoder_ffn_dim=16)
    model = nopad.packed(transformers.BartForConditionalGeneration(config).eval().double())
    batch = nopad.PackedBatch.from_sequences([[7, 8, 9], [5], [6, 6]], nopad.Rows(4)).with_decoder(
        [[4, 3], [2, 8, 9], [1]], 0, nopad.Rows(5)
    )
    save_batch(tmp_path / "a.safetensors", batch)
    kept = load_batch(tmp_path / "a.safetensors")
    assert {*kept} == {*batch}
    with torch.no_grad():
        given, again = (model(**one, use_cache=False) for one in (batch, kept))
    assert torch.equal(given.logits, again.logits)
    for one, other in zip(
        batch.targets.unpack_tokens(given.logits), kept.targets.unpack_tokens(again.logits), strict=True
    ):
        assert torch.equal(one, other)


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA"), RuntimeError("can't allocate memory: 9 bytes")])
def test_too_little_memory_names_what_helps(tmp_path, monkeypatch, error):
    run = trainer(tmp_path)

    def forward(*args, **kwargs):
        raise error

    monkeypatch.setattr(run.model.classifier, "forward", forward)
    state_of(run.model).watch.known.append(forward)  # as if the model had had it before
    with pytest.raises(DeviceMemoryError, match=r"2 rows of 64 slots.*gradient_checkpointing=True"):
        run.train()


def test_what_packing_changes_is_said_before(tmp_path, capsys):
    made = [{"text": "one two", "label": 0}] * 256  # 4 tokens each: 16 in a pack
    how = {"warmup_steps": 2, "gradient_accumulation_steps": 8, "per_device_train_batch_size": 1, "num_train_epochs": 1}
    run = trainer(tmp_path, made=made, how=how, quiet=False)
    run.train()
    said = capsys.readouterr().out
    assert "one sequence per row would take 32 steps: a schedule in steps sees 16.00 times" in said
    assert "an optimiser step averages over 128 sequences instead of 8" in said
    assert "step     1 rank x 8 micro-steps x 1 pack: 128 sequences, 512 tokens on average" in said
    assert "no number of rows makes it as few as without packs: one row holds about 16 sequences" in said
    assert "warm-up  2 steps see 256 sequences, 16.00 times as many" in said
    how = arguments(tmp_path, gradient_accumulation_steps=32, max_steps=4)
    assert "gradient_accumulation_steps=2 would make it about as many" in effects(run.train_dataset.summary(), how)
    how.gradient_accumulation_steps, how.per_device_train_batch_size = 1, 40
    assert "2 rows per rank and step, in place of 40, would" in effects(run.train_dataset.summary(), how)
    assert "max_steps=4 are 2.00 epochs; without packs they would be 0.12" in effects(run.train_dataset.summary(), how)


@pytest.mark.parametrize(
    ("accumulation", "rows", "factor", "said"),
    [
        (1, 2, 1.5, "1 row per rank and step, in place of 2, would"),  # not the one micro-step that there is already
        (1, 4, 1.1, "no smaller number of rows comes nearer to 9.1"),
        (1, 1, 1.3, "no smaller number of rows comes nearer to 7.7"),
        (4, 1, 2.0, "gradient_accumulation_steps=2 would"),
    ],
)
def test_the_way_back_is_never_the_step_that_there_is(tmp_path, accumulation, rows, factor, said):
    run = trainer(tmp_path, made=[{"text": "one two", "label": 0}] * 64)
    summary = replace(run.train_dataset.summary(), steps=100, steps_not_packed=round(100 * factor), sequences=1000)
    how = arguments(tmp_path, gradient_accumulation_steps=accumulation, per_device_train_batch_size=rows)
    assert said in effects(summary, how)


def test_a_row_of_each_of_two_ranks_holds_half_of_the_sequences(tmp_path):
    run = trainer(tmp_path, made=[{"text": "one two", "label": 0}] * 64)
    shape = run.train_dataset.summary().shape
    two = replace(shape, world_size=2)
    summary = replace(run.train_dataset.summary(), steps=10, steps_not_packed=200, sequences=400, shape=two)
    how = arguments(tmp_path, gradient_accumulation_steps=1, per_device_train_batch_size=1)
    assert "no number of rows makes it as few as without packs: one row holds about 20 sequences" in effects(
        summary, how
    )


def test_a_saved_model_says_what_it_was_trained_for(tmp_path):
    made = [{"said": "one two three four five six seven eight nine", "label": n % 2} for n in range(8)]
    task = Classification(tokenizer(), ["no", "yes"], text="said", max_length=8, over_long="truncate")
    how = {"max_steps": 1, "save_strategy": "steps", "save_steps": 1}
    run = trainer(tmp_path / "run", bert(task), made, task=task, how=how)
    run.train()
    run.save_model(str(tmp_path / "model"))
    for folder in (tmp_path / "model", tmp_path / "run" / "checkpoint-1"):
        name, options = stored_task(folder)
        assert (name, options) == (
            "classify",
            {"labels": ["no", "yes"], "text": "said", "max_length": 8, "over_long": "truncate"},
        )
    assert vars(task_named(name, task.tokenizer, options)).keys() == vars(task).keys()
    found = [*nopad.tasks.predict(*load_task(name, tmp_path / "model", options), made)]  # with the task's tokenizer
    assert found == [*nopad.tasks.predict(task, run.model, made)]


@pytest.mark.parametrize("content", ["[" * 60_000, "1" * 5000, "[]"], ids=["deep", "digits", "list"])
def test_a_stored_task_that_is_none_is_damaged(tmp_path, content):
    (tmp_path / "nopad_task.json").write_text(content)
    with pytest.raises(FormatError, match=r"nopad_task\.json is damaged"):
        stored_task(tmp_path)


def test_a_task_of_your_own_is_not_stored_under_another_name(tmp_path):
    class Mine(Classification):
        pass

    task = Mine(tokenizer(), 3)
    trainer(tmp_path / "run", bert(task), task=task).save_model(str(tmp_path / "model"))
    assert stored_task(tmp_path / "model") is None


def test_what_cannot_be_meant_is_refused(tmp_path):
    with pytest.raises(OptionError, match="packs of what capacity"):
        trainer(tmp_path, capacity=None)
    with pytest.raises(OptionError, match="give a task or an objective"):
        trainer(tmp_path, objective=OfTokens())
    with pytest.raises(
        OptionError, match=r"metric_for_best_model is 'eval_bleu', and an evaluation gives accuracy, f1"
    ):
        trainer(tmp_path, how={"metric_for_best_model": "eval_bleu"})
    with pytest.raises(OptionError, match="label_smoothing_factor would do nothing"):
        trainer(tmp_path, how={"label_smoothing_factor": 0.1})
    with pytest.raises(OptionError, match="two losses"):
        trainer(tmp_path, compute_loss_func=lambda *_: None)
    with pytest.raises(UnsupportedModelError, match="what BertModel learns is not known"):
        trainer(tmp_path, bert(classified(), "BertModel"), classified().encode(classify_records()), task=None)
    stream = nopad.PackedLoader(lambda: iter([{"input_ids": [1, 2]}]), CAPACITY, rows=2, exhausted="repeat")
    with pytest.raises(OptionError, match="an evaluation needs data that end"):
        trainer(tmp_path).evaluate(stream)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"batch_eval_metrics": True}, "batch_eval_metrics is not for packs"),
        ({"eval_do_concat_batches": False}, "eval_do_concat_batches is not for packs"),
        ({"dataloader_drop_last": True}, "dataloader_drop_last is the loader's business"),
        (
            {"torch_compile": True, "torch_compile_backend": "eager"},
            r"torch_compile compiles calls of one shape .*layer.compile\(\)",
        ),
    ],
)
@pytest.mark.parametrize("training", [True, False])
def test_options_are_looked_at_without_training_data_too(tmp_path, how, message, training):
    data = {} if training else {"train_dataset": None, "eval_dataset": classify_records()}
    with pytest.raises(OptionError, match=message):
        trainer(tmp_path, how=how, **data)


def test_a_trainer_without_data_is_ready_when_it_gets_some(tmp_path):
    made = classify_records()
    with torch.no_grad():
        logits, losses = alone(bert(classified()).eval(), made)
    found = trainer(tmp_path, train_dataset=None).predict(made)
    assert np.abs(found.predictions - logits.numpy()).max() < 1e-12
    assert abs(found.metrics["test_loss"] - losses.mean().item()) < 1e-12
    many = arguments(tmp_path)
    many._n_gpu = 2
    with pytest.raises(OptionError, match="DataParallel would cut each batch into 2 pieces"):
        PackedTrainer(bert(classified()), many, task=classified(), capacity=CAPACITY).predict(made)


def test_data_that_are_given_later_are_packed_too(tmp_path):
    made, later = trainer(tmp_path), trainer(tmp_path, train_dataset=None)
    later.train_dataset = classify_records()
    made.train()
    later.train()
    assert [entry.get("loss") for entry in later.state.log_history] == [
        entry.get("loss") for entry in made.state.log_history
    ]


def test_a_model_of_other_labels_is_refused_before_anything_runs(tmp_path):
    from nopad.tasks import CausalLM, Classification

    turned = Classification(tokenizer(), ["good", "fair", "bad"])
    for data in ({}, {"train_dataset": None, "eval_dataset": classify_records()}):
        with pytest.raises(OptionError, match="the model has them as good, fair, bad; give them in the model's order"):
            trainer(tmp_path, bert(turned), **data)
        with pytest.raises(OptionError, match="needs a causal language model's"):
            trainer(tmp_path, task=CausalLM(tokenizer()), **data)
    run = PackedTrainer(
        args=arguments(tmp_path),
        task=classified(),
        capacity=CAPACITY,
        model_init=lambda: bert(turned, id2label={0: "a", 1: "b", 2: "c"}),
        train_dataset=classify_records(),
    )
    assert run.model.config.id2label == {0: "bad", 1: "fair", 2: "good"}  # which its checkpoints say


def test_ranks_without_ddp_are_refused(tmp_path, monkeypatch):
    run = trainer(tmp_path)
    monkeypatch.setattr(type(run.accelerator), "distributed_type", accelerate.DistributedType.MULTI_CPU)
    with pytest.raises(OptionError, match="without DDP, so each rank would learn by itself"):
        run.training_step(run.model, next(iter(run.train_dataset)))


def test_a_trainer_that_divides_the_loss_again_is_refused(tmp_path):
    class Plain(PackedTrainer):
        def training_step(self, model, inputs, *args, **kwargs):
            return super().training_step(model, inputs, *args, **kwargs)

    class Below(transformers.Trainer):
        def training_step(self, model, inputs, *args, **kwargs):
            return super().training_step(model, inputs, *args, **kwargs) / self.args.gradient_accumulation_steps

    class Mine(PackedMixin, Below):
        pass

    assert trainer(tmp_path, kind=Plain).train().global_step
    with pytest.raises(OptionError, match=r"Mine changes the loss after compute_loss, from .* divided by the denomi"):
        trainer(tmp_path, kind=Mine).train()


def test_a_checkpoint_of_another_model_is_refused(tmp_path):
    trainer(tmp_path, how={"save_strategy": "steps", "save_steps": 1, "max_steps": 1}).train()
    other = trainer(tmp_path, bert(classified(), num_hidden_layers=1))
    with pytest.raises(OptionError, match="num_hidden_layers is 2 there and 1 here"):
        other.train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))


def test_an_evaluation_that_is_not_packed_says_so(tmp_path, caplog):
    features = [dict(tokenizer()(record["text"]), labels=record["label"]) for record in classify_records()]
    run = PackedTrainer(
        bert(classified()),
        arguments(tmp_path, remove_unused_columns=False),
        transformers.DataCollatorWithPadding(tokenizer()),
        classified().loader(classify_records(), CAPACITY, rows=2, accumulation=2),
        features,
        quiet=True,
    )
    transformers.utils.logging.get_logger("nopad").propagate = True
    assert "eval_loss" in run.evaluate()
    assert "evaluation is not packed" in caplog.text


def test_examples_without_a_task_are_tokens(tmp_path):
    made = classified().encode(classify_records())
    assert isinstance(made, Examples)
    run = trainer(tmp_path, made=made, task=None)
    run.train()
    assert run.evaluate(made)["eval_accuracy"] >= 0


def test_evaluations_of_the_same_weights_are_the_same_to_the_last_bit(tmp_path):
    """However often one has evaluated: a resumed run evaluates less often, and must choose the same best model."""
    model, made = bert(classified()).float(), classify_records()
    run = trainer(tmp_path, model, made)
    losses = {run.evaluate(made)["eval_loss"] for _ in range(4)}
    assert len(losses) == 1
    assert trainer(tmp_path, model, made).evaluate(made)["eval_loss"] in losses


def test_a_decoder_without_a_pad_id_is_refused_before_any_step(tmp_path):
    def made():
        return llama(classified(), "LlamaForSequenceClassification", pad_token_id=None)

    with pytest.raises(OptionError, match=r"LlamaForSequenceClassification has no pad id, .* batches have 2"):
        trainer(tmp_path, made())
    assert trainer(tmp_path, made(), how={"per_device_train_batch_size": 1}).train_dataset.rows == 1
    trainer(tmp_path, made(), processing_class=tokenizer())  # transformers gives the model its pad id
    evaluated = trainer(tmp_path, made(), how={"per_device_train_batch_size": 1, "per_device_eval_batch_size": 2})
    with pytest.raises(OptionError, match="has no pad id"):
        evaluated.evaluate(classify_records())


def test_records_that_change_in_place_are_seen(tmp_path):
    """A label, a text, a list inside a record: an evaluation is of what is there now."""
    records = classify_records()
    run = trainer(tmp_path, eval_dataset=records)
    before = run.evaluate()["eval_loss"]
    kept = run._evaluated[0][2]
    assert run.evaluate()["eval_loss"] == before
    assert run._evaluated[0][2] is kept
    for name, value in (("label", (records[0]["label"] + 1) % 2), ("text", "yes why not")):
        was = records[0][name]
        records[0][name] = value
        changed = run.evaluate()["eval_loss"]
        assert changed == run.evaluate(copy.deepcopy(records))["eval_loss"] != before
        records[0][name] = was
        assert run.evaluate()["eval_loss"] == before


@pytest.mark.parametrize(
    ("data", "change"),
    [
        ([{"a": [1, 2]}], lambda data: data[0]["a"].append(3)),
        ([{"a": np.zeros(9)}], lambda data: data[0]["a"].__setitem__(3, 1)),
        ([[1, 2], [3]], lambda data: data[1].__setitem__(0, 4)),
        ([{"a": {"b": ["x"]}}], lambda data: data[0]["a"]["b"].clear()),
        (classified().encode(classify_records()), lambda data: data.sequences.values["labels"].__setitem__(0, 1)),
    ],
)
def test_a_fingerprint_is_of_the_content(data, change):
    before = fingerprint_of(data)
    assert before == fingerprint_of(copy.deepcopy(data)) is not None
    if isinstance(data, Examples):
        data.sequences.values["labels"][0] = 0
        before = fingerprint_of(data)
    change(data)
    assert fingerprint_of(data) != before


def test_what_cannot_be_told_apart_is_not_kept():
    assert fingerprint_of([lambda: 1]) is None
    assert fingerprint_of(datasets.Dataset.from_list([{"a": 1}])) == fingerprint_of(
        datasets.Dataset.from_list([{"a": 1}])
    )


def test_layers_may_be_compiled_where_the_trainer_may_not(tmp_path):
    """The way out that the refusal of torch_compile names."""
    losses = []
    for compiled in (False, True):
        model = bert(classified())
        for layer in model.bert.encoder.layer if compiled else ():
            layer.compile(backend="eager")
        run = trainer(tmp_path / str(compiled), model, how={"num_train_epochs": 1, "max_steps": 2})
        run.train()
        losses.append([entry["loss"] for entry in run.state.log_history if "loss" in entry])
    assert losses[0]
    assert losses[1] == pytest.approx(losses[0], rel=1e-9)


@pytest.mark.parametrize("capacity", [None, CAPACITY, 80])
@pytest.mark.parametrize("task", [classified(), None])
def test_a_packed_dataset_is_data(tmp_path, task, capacity):
    """Row by row as stored, or packed anew: every sequence once, and an evaluation is that of single sequences."""
    made = classify_records()
    packed = nopad.pack_dataset(made, CAPACITY, task=classified())
    model = bert(classified())
    how = {"num_train_epochs": 1, "max_grad_norm": 0.0}
    run = trainer(tmp_path, model, packed, task=task, capacity=capacity, eval_dataset=packed, how=how)
    assert run.train_dataset.capacity == (capacity or CAPACITY)
    seen = [n for batch in copy.copy(run.train_dataset) for n in batch.records["seq_index"].tolist()]
    assert sorted(seen) == list(range(len(made)))
    logits, losses = alone(model.eval(), made)
    found = run.evaluate()
    assert found["eval_loss"] == pytest.approx(losses.mean().item(), rel=1e-12)
    assert found["eval_accuracy"] == np.mean(logits.argmax(1).numpy() == [record["label"] for record in made])
    run.train()
    if capacity is None:
        rows = sorted(row.seq_index.tolist() for row in packed)
        loader = nopad.PackedLoader(packed, rows=1, last="fill")
        assert sorted(batch.records["seq_index"].tolist() for batch in loader) == rows


def test_a_packed_dataset_of_tokens_trains_a_causal_model(tmp_path):
    packed = nopad.pack_dataset([[7] * n for n in LENGTHS.tolist()], CAPACITY)
    run = trainer(tmp_path, causal_model(), packed, task=None, capacity=None, how={"num_train_epochs": 1})
    run.train()
    assert run.state.log_history[0]["loss"] > 0
