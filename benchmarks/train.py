"""Training on packs beside padding: sequences per second, what the trainer itself takes, TRL, and what is learned.

`speed`: forward, backward and optimiser step of one classifier (MiniLM's size) and one causal model, on lengths like
GLUE's and chats', at 128, 384, 512 and 2,048: padded to the capacity, padded per batch, padded and sorted, packed rows
(`mask`), packed without padding (`segments`); speed-ups beside the packing factor. `overhead`: loader, collator and
counts in `PackedTrainer`, beside a MiniLM step of 4,096 tokens. `trl`: `SFTTrainer` with ``packing=True`` and
``padding_free=True``, and ours, on one model, one set of texts and as many steps. `bytes`: what goes from host to
device per sequence. MiniLM on local pairs, with accuracies, is `finetuning.py`.

    python benchmarks/train.py [speed] [overhead] [trl] [bytes] [--capacity 384 ...]
"""

from __future__ import annotations

import argparse
import contextlib
import io
import itertools
import logging
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
import transformers
from inputs import lognormal, machine

import nopad
from nopad.corpus import stdlib_texts
from nopad.sequences import Sequences
from nopad.tasks import OfSequences, OfTokens
from nopad.tasks.folder import default_folder
from nopad.training import PackedTrainer, mixin
from nopad.training.trouble import Watch

SLOTS = 4096  # of a micro-step, on every side
STILL = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
MINILM = {**STILL, "hidden_size": 384, "num_hidden_layers": 6, "intermediate_size": 1536, "num_attention_heads": 12}
SMALL = {"hidden_size": 256, "num_hidden_layers": 4, "intermediate_size": 704, "num_attention_heads": 4}
# (what, capacity, lengths, whether causal): medians and spreads of GLUE's short sets, of SQuAD, Wikipedia and chats
CASES = (
    ("GLUE-like (cola)", 128, lambda: lognormal(1600, 10, 0.4, 128), False),
    ("GLUE-like (mnli)", 128, lambda: lognormal(450, 36, 0.45, 128), False),
    ("SQuAD-like", 384, lambda: lognormal(160, 150, 0.4, 384), False),
    ("Wikipedia-like", 512, lambda: lognormal(120, 200, 0.9, 512), False),
    ("chats", 2048, lambda: lognormal(60, 350, 1.1, 2048), True),
)


def padded(ids: list[np.ndarray], rows: int, width: int | None = None) -> Iterator[dict[str, torch.Tensor]]:
    """Batches of so many rows, padded to the longest, or to `width`."""
    for first in range(0, len(ids), rows):
        part = ids[first : first + rows]
        longest = width or max(map(len, part))
        made = np.zeros((2, len(part), longest), np.int64)
        for row, one in enumerate(part):
            made[0, row, : one.size], made[1, row, : one.size] = one, 1
        yield {"input_ids": torch.from_numpy(made[0]), "attention_mask": torch.from_numpy(made[1])}


def speed(options: argparse.Namespace) -> None:
    """Print sequences per second of each way, and speed-ups beside the packing factor."""
    for what, capacity, lengths_of, causal in CASES:
        if capacity not in options.capacity:
            continue
        torch.manual_seed(0)
        lengths = lengths_of()
        ids = [np.random.default_rng(n).integers(1000, 20000, length) for n, length in enumerate(lengths.tolist())]
        if causal:
            config = transformers.LlamaConfig(vocab_size=20000, num_key_value_heads=4, **SMALL)
            model: Any = transformers.LlamaForCausalLM(config)
        else:
            config = transformers.BertConfig(num_labels=2, **MINILM)
            model = transformers.BertForSequenceClassification(config)
        factor = nopad.plan(nopad.Histogram.from_lengths(lengths), capacity).packing_factor
        print(f"\n{what}, capacity {capacity}: {len(ids)} sequences, mean {lengths.mean():.0f}, factor {factor:.3f}")
        found = _ways(model, ids, capacity, causal)
        for name, each in found.items():
            print(f"  {name:<24}{statistics.median(each):9.2f} sequences/s")
        fixed = statistics.median(found["padded to capacity"])
        for name, target in (("rows, mask", 0.95), ("flat, segments", 1.0)):
            times = statistics.median(found[name]) / fixed
            print(f"  {name}: {times:.2f} x padded to capacity = {times / factor:.2f} of the factor (target {target})")
        ours = statistics.median(found["flat, segments"])
        rest = {name: ours / statistics.median(found[name]) for name in ("padded per batch", "padded, sorted")}
        print("  flat, segments: " + ", ".join(f"{by:.2f} x {name}" for name, by in rest.items()), flush=True)


def _ways(model: Any, ids: list[np.ndarray], capacity: int, causal: bool, turns: int = 2) -> dict[str, list[float]]:
    objective = OfTokens(causal=True) if causal else OfSequences("classes", 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    values = {} if causal else {"labels": np.arange(len(ids)) % 2}
    made = Sequences(
        seq_lengths=np.array([one.size for one in ids], np.int32),
        tokens={"input_ids": np.concatenate(ids).astype(np.int32)},
        values=values,
    )
    rows = max(SLOTS // capacity, 1)

    def step(loss: torch.Tensor) -> None:
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    def pad(sequences: list[np.ndarray], per_batch: int, width: int | None = None) -> Callable[[], int]:
        def run() -> int:
            for batch in padded(sequences, per_batch, width):
                labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
                step(model(**batch, labels=labels if causal else torch.zeros(len(labels), dtype=torch.long)).loss)
            return len(sequences)

        return run

    def pack(backend: str, **how: Any) -> Callable[[], int]:
        def run() -> int:
            nopad.packed(model, backend=backend)
            # whole steps only: what a set of this size leaves for the last one says nothing of speed
            loader = nopad.PackedLoader(made, **how, last="drop", collate=nopad.loading.causal if causal else None)
            try:
                for batch in loader:
                    step(objective.step(model, batch)[0])
            finally:
                nopad.unpacked(model)
            return loader.sequences_seen

        return run

    mean = max(int(np.mean([one.size for one in ids])), 1)
    ways = {
        "padded to capacity": pad(ids[: 6 * rows], rows, capacity),
        "padded per batch": pad(ids, max(SLOTS // mean, 1)),
        "padded, sorted": pad(sorted(ids, key=len), max(SLOTS // mean, 1)),
        "rows, mask": pack("mask", capacity=capacity, rows=rows),
        "flat, segments": pack("segments", tokens=SLOTS),
    }
    found: dict[str, list[float]] = {name: [] for name in ways}
    pack("segments", tokens=SLOTS)()
    for turn, (name, run) in itertools.product(range(turns), ways.items()):
        if name == "padded to capacity" and turn:
            continue
        start = time.perf_counter()
        trained = run()
        found[name].append(trained / (time.perf_counter() - start))
    return found


def overhead(_: argparse.Namespace) -> None:
    """Print what nopad's part of the trainer takes beside a MiniLM step of 4,096 tokens."""
    lengths = lognormal(2400, 60, 0.6, 512)
    made = Sequences(
        seq_lengths=lengths,
        tokens={"input_ids": np.random.default_rng(0).integers(1000, 20000, int(lengths.sum())).astype(np.int32)},
        values={"labels": np.arange(lengths.size) % 2},
    )
    model = transformers.BertForSequenceClassification(transformers.BertConfig(num_labels=2, **MINILM))
    times: dict[str, list[float]] = {"step": [], "batches and counts": [], "losses looked at": []}

    class Timed(PackedTrainer):
        def get_batch_samples(self, *args: Any, **kwargs: Any) -> Any:
            with _clock(times["batches and counts"]):
                return super().get_batch_samples(*args, **kwargs)

        def training_step(self, *args: Any, **kwargs: Any) -> Any:
            with _clock(times["step"]):
                return super().training_step(*args, **kwargs)

    class Looked(Watch):
        def end_step(self, *args: Any) -> None:
            with _clock(times["losses looked at"]):
                super().end_step(*args)

    loader = nopad.PackedLoader(made, tokens=SLOTS, prefetch=0)  # nothing is built in the shadow of the model
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        trainer = Timed(model, arguments(folder, max_steps=16), train_dataset=loader, quiet=True)
        mixin.Watch = Looked  # type: ignore[misc]
        trainer.train()
    medians = {name: statistics.median(each[2:]) for name, each in times.items() if len(each) > 2}
    own = medians["batches and counts"] + medians.get("losses looked at", 0.0)
    print(f"\na MiniLM step of {SLOTS:,} tokens: {medians['step'] * 1e3:.0f} ms")
    print(", ".join(f"{name} {value * 1e3:.2f} ms" for name, value in medians.items() if name != "step"))
    print(f"nopad's part: {own / medians['step']:.2%} of the step (target <= 2 %)", flush=True)


@contextlib.contextmanager
def _clock(taken: list[float]) -> Iterator[None]:
    start = time.perf_counter()
    yield
    taken.append(time.perf_counter() - start)


def arguments(folder: str, kind: Any = transformers.TrainingArguments, **options: Any) -> Any:
    """Arguments of a run on the CPU that reports nothing."""
    same = {"per_device_train_batch_size": 1, "logging_steps": 1, "save_strategy": "no", "report_to": []}
    same |= {"use_cpu": True, "disable_tqdm": True, "num_train_epochs": 1, "output_dir": folder}
    return kind(**{**same, **options})


def trl(_: argparse.Namespace) -> None:
    """Print tokens per second, loss and truncated tokens of TRL's packing, its padding-free batches, and ours."""
    import datasets
    import trl as theirs

    from nopad.training import PackedSFTTrainer

    tokenizer = transformers.AutoTokenizer.from_pretrained(default_folder())
    tokenizer.eos_token = tokenizer.sep_token
    texts = [entry["text"] for entry in stdlib_texts() if len(entry["text"]) > 200][:120]
    ids = [tokenizer(text, truncation=False, verbose=False)["input_ids"] for text in texts]
    capacity, rows, tokens = 512, 4, sum(map(len, ids))
    longest = sum(max(len(one) - capacity, 0) for one in ids)
    print(f"\nSFT of a causal model on {len(ids)} texts, {tokens:,} tokens, capacity {capacity}, 1 epoch")
    kept = [one[:capacity] for one in ids]
    split = [one[at : at + capacity] for one in ids for at in range(0, len(one), capacity)]
    ways: dict[str, tuple[Any, dict[str, Any], Any, int]] = {
        "TRL packing": (theirs.SFTTrainer, {"packing": True}, ids, longest),
        "TRL padding-free": (theirs.SFTTrainer, {"padding_free": True, "max_length": None}, kept, longest),
        "TRL padded": (theirs.SFTTrainer, {}, ids, longest),
        "nopad": (PackedSFTTrainer, {"max_length": None}, split, 0),
    }
    for name, (kind, how, data, lost) in ways.items():
        torch.manual_seed(0)
        model = transformers.LlamaForCausalLM(
            transformers.LlamaConfig(vocab_size=len(tokenizer), num_key_value_heads=4, **SMALL)
        )
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
            same = {"per_device_train_batch_size": rows, "max_length": capacity, "gradient_checkpointing": False}
            config = arguments(folder, theirs.SFTConfig, **{**same, "bf16": False, "learning_rate": 1e-3, **how})
            if kind is PackedSFTTrainer:
                set_ = nopad.PackedLoader(
                    [np.array(one) for one in data], capacity, rows=rows, last="fill", collate=nopad.loading.causal
                )
                trainer = kind(model, config, train_dataset=set_, processing_class=tokenizer, quiet=True)
            else:
                set_ = datasets.Dataset.from_dict({"input_ids": data})
                trainer = kind(model, config, train_dataset=set_, processing_class=tokenizer)
            start = time.perf_counter()
            trainer.train()
            seconds = time.perf_counter() - start
        trained = sum(map(len, split if not lost else kept))
        losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
        print(
            f"  {name:<18}{trained / seconds:8,.0f} tokens/s  {len(losses):3} steps  loss {losses[0]:.3f} -> "
            f"{statistics.mean(losses[-5:]):.3f}  lost {lost / tokens:.2%} of the tokens",
            flush=True,
        )


def bytes_(_: argparse.Namespace) -> None:
    """Print how many bytes of tensors a batch hands to a device, per sequence."""
    lengths = lognormal(2000, 36, 0.45, 128)
    ids = [np.full(length, 1000) for length in lengths.tolist()]
    print("\nbytes from host to device per sequence (GLUE-like, capacity 128)")
    made = list(padded(ids, 32, 128))
    total = sum(tensor.nbytes for batch in made for tensor in batch.values())
    print(f"  padded to 128: {total / len(ids):,.0f}")
    for name, how in (("rows", {"capacity": 128, "rows": 8}), ("flat", {"tokens": 1024})):
        moved = 0
        for batch in nopad.PackedLoader(ids, **how):
            moved += sum(value.nbytes for value in batch.values() if isinstance(value, torch.Tensor))
            moved += batch.cu_seqlens.nbytes
        print(f"  {name}: {moved / len(ids):,.0f}")


PARTS = {"speed": speed, "overhead": overhead, "trl": trl, "bytes": bytes_}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="which; all by default")
    parser.add_argument("--capacity", type=int, nargs="+", default=[128, 384, 512, 2048], help="of speed")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    print(f"training on packs: {machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}", flush=True)
    for part in options.parts or PARTS:
        PARTS[part](options)


if __name__ == "__main__":
    main()
