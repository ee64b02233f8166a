"""The README's table: one causal model fine-tuned on the same texts, batched in the ways that people use today.

Real texts of the standard library (docstrings and comments of more than 200 characters), one epoch of steps of 32
sequences, each in 4 micro-batches of 8 (`gradient_accumulation_steps=4`); a model of 4 x 256 with BERT's vocabulary; the
same first weights and the same optimiser in one plain loop. "padded" and "nopad" take the same sequences in every step, so
their curves can be laid on each other; nopad's micro-batch is 8 sequences in one stream. Packs of TRL and axolotl hold at
most 1,024 tokens, and a micro-batch is one pack; a step has as many packs as hold about 32 sequences. TRL's own functions
make its packs (`pack_dataset`, strategy "bfd") and its batches (`DataCollatorForLanguageModeling`); axolotl's own sampler
makes its packs (`MultipackBatchSampler`), where it can be imported: `pip install --no-deps axolotl==0.19.0` is enough.
Sorting is Hugging Face's group_by_length: sorted within 50 batches, batches in a random order.

The steps of all ways are taken in turns, several epochs of each from the same first weights; a step's time is its fastest.
Making the batches is not timed. Each line has the seconds of the epoch, tokens/s, the padding, how far the loss of any
token is from what it gets alone (the same weights for all ways), the steps, and the mean loss of the last three.

    python benchmarks/front.py [--texts 256] [--capacity 1024] [--picture docs/pictures/front.svg]
"""

from __future__ import annotations

import argparse
import copy
import importlib.metadata
import importlib.util
import itertools
import logging
import statistics
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from inputs import machine

import nopad
from nopad.corpus import stdlib_texts
from nopad.tasks import OfTokens
from nopad.tasks.folder import default_folder

SIZES = {"hidden_size": 256, "num_hidden_layers": 4, "intermediate_size": 704, "num_attention_heads": 4}
PER_BATCH, ACCUMULATION = 8, 4
PER_STEP = PER_BATCH * ACCUMULATION
JUDGED = 64  # sequences whose losses are compared with those alone
COLOURS = {
    "padded, random batches": "#888888",
    "padded, grouped by length": "#b08a3e",
    "TRL packing (bfd)": "#e45756",
    "TRL padding-free": "#72b7b2",
    "axolotl multipack": "#54a24b",
    "nopad": "#1f4e9c",
}
Batch = dict[str, torch.Tensor]


def texts_of(count: int, capacity: int) -> list[np.ndarray]:
    tokenizer = transformers.AutoTokenizer.from_pretrained(default_folder())
    texts = [entry["text"] for entry in stdlib_texts() if len(entry["text"]) > 200]
    np.random.default_rng(0).shuffle(texts)
    ids = (np.array(tokenizer(text, verbose=False)["input_ids"], np.int32) for text in texts)
    kept = (one for one in ids if one.size <= capacity)  # over-long texts are no part of the comparison
    return [one for one, _ in zip(kept, range(count), strict=False)]


def padded(part: list[np.ndarray]) -> Batch:
    longest = max(map(len, part))
    ids, mask = np.zeros((2, len(part), longest), np.int64)
    for row, one in enumerate(part):
        ids[row, : one.size], mask[row, : one.size] = one, 1
    labels = np.where(mask > 0, ids, -100)
    return {
        "input_ids": torch.from_numpy(ids),
        "attention_mask": torch.from_numpy(mask),
        "labels": torch.from_numpy(labels),
    }


def dealt(ids: list[np.ndarray]) -> Iterator[list[Any]]:
    """Steps of nopad: 32 sequences of an epoch's order in 4 rows without padding."""
    batches = nopad.PackedLoader(
        ids, sequences=PER_BATCH, accumulation=ACCUMULATION, last="drop", collate=nopad.loading.causal
    )
    return steps_of(list(batches), ACCUMULATION)


def steps_of(units: list[Any], per_step: int) -> Iterator[list[Any]]:
    for at in range(0, len(units) - per_step + 1, per_step):
        yield units[at : at + per_step]


def by_length(ids: list[np.ndarray]) -> Iterator[list[Batch]]:
    draw = np.random.default_rng(0)
    order = draw.permutation(len(ids))
    window = 50 * PER_BATCH
    order = np.concatenate(
        [sorted(order[at : at + window], key=lambda one: -len(ids[one])) for at in range(0, len(ids), window)]
    )
    batches = [padded([ids[one] for one in part]) for part in steps_of(order.tolist(), PER_BATCH)]
    return steps_of([batches[at] for at in draw.permutation(len(batches))], ACCUMULATION)


def flat_collator() -> Any:
    from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

    return DataCollatorForLanguageModeling(pad_token_id=0, padding_free=True)


def in_one_row(ids: list[np.ndarray], groups: list[list[int]]) -> list[Batch]:
    """Batches of TRL's collator: the sequences of each group in one row, their positions beginning at 0."""
    collate = flat_collator()
    return [collate([{"input_ids": ids[one].tolist()} for one in group]) for group in groups]


def trl_padding_free(ids: list[np.ndarray]) -> Iterator[list[Batch]]:
    order = np.random.default_rng(0).permutation(len(ids)).tolist()
    return steps_of(in_one_row(ids, list(steps_of(order, PER_BATCH))), ACCUMULATION)


def trl_packing(ids: list[np.ndarray], capacity: int) -> Iterator[list[Batch]]:
    import datasets
    from trl.data_utils import pack_dataset

    datasets.disable_progress_bars()
    collate = flat_collator()
    found = pack_dataset(datasets.Dataset.from_dict({"input_ids": [one.tolist() for one in ids]}), capacity, "bfd")
    rows = [collate([found[int(row)]]) for row in np.random.default_rng(0).permutation(len(found))]
    return steps_of(rows, packs_per_step(len(rows), len(ids)))


def multipack(ids: list[np.ndarray], capacity: int) -> Iterator[list[Batch]]:
    """Steps of axolotl's sampler with its defaults: at most 200 sequences in a pack, groups of 100,000."""
    from axolotl.utils.samplers import MultipackBatchSampler

    order = np.random.default_rng(0).permutation(len(ids)).tolist()
    lengths = np.array([len(one) for one in ids])
    batches = MultipackBatchSampler(
        order, batch_size=1, batch_max_len=capacity, lengths=lengths, bin_size=200, drop_last=True
    ).generate_batches()
    rows = in_one_row(ids, [pack for (pack,) in batches])
    return steps_of(rows, packs_per_step(len(rows), len(ids)))


def packs_per_step(packs: int, sequences: int) -> int:
    return max(round(PER_STEP * packs / sequences), 1)


class Run:
    """An epoch of one way: the same first weights in each turn, so that a step's loss is the same in all of them.

    Attributes:
        steps: the batches of each step; making them is not timed.
        losses: the loss of each step.
        seconds: the fastest time of each step over all turns.
    """

    def __init__(self, first: Any, steps: Iterator[list[Any]], ours: bool) -> None:
        self.first, self.steps, self.ours = first, list(steps), ours
        self.losses = [0.0] * len(self.steps)
        self.seconds = [float("inf")] * len(self.steps)
        self.objective = OfTokens(causal=True)

    def begin(self) -> None:
        """Start a turn, with a step before it that warms up and is forgotten."""
        self._set()
        self._train(self.steps[0])
        self._set()

    def _set(self) -> None:
        model = copy.deepcopy(self.first)
        self.model = nopad.packed(model) if self.ours else model
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)

    def step(self, number: int) -> None:
        begin = time.perf_counter()
        self.losses[number] = self._train(self.steps[number])
        self.seconds[number] = min(self.seconds[number], time.perf_counter() - begin)

    def _train(self, step: list[Any]) -> float:
        total = 0.0
        count: Any = sum(
            self.objective.count(batch) if self.ours else (batch["labels"][:, 1:] != -100).sum() for batch in step
        )
        for batch in step:
            if self.ours:
                loss = self.objective.step(self.model, batch, count)[0]
            else:
                loss = self.model(**batch, num_items_in_batch=count).loss
            loss.backward()
            total += loss.item()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return total

    def batches(self) -> Iterator[Any]:
        return itertools.chain.from_iterable(self.steps)

    @property
    def slots(self) -> int:
        return sum(batch["input_ids"].numel() for batch in self.batches())

    @property
    def tokens(self) -> int:
        if self.ours:
            return sum(batch.layout.tokens for batch in self.batches())
        return sum(
            int(batch.get("attention_mask", torch.ones_like(batch["input_ids"])).sum()) for batch in self.batches()
        )


def error_of(model: Any, batches: Iterator[Any], ours: bool) -> float:
    """Return the largest difference of a token's loss from the loss that it has when its sequence is run alone."""
    worst, seen = 0.0, 0
    with torch.inference_mode():
        for batch in batches:
            logits = (
                model(**batch).logits if ours else model(**{k: v for k, v in batch.items() if k != "labels"}).logits
            )
            for ids, found in sequences_of(batch, logits, ours):
                if ours:
                    nopad.unpacked(model)
                alone = model(input_ids=ids[None]).logits[0]
                if ours:
                    nopad.packed(model)
                got, right = (
                    torch.nn.functional.cross_entropy(one[:-1].float(), ids[1:].long(), reduction="none")
                    for one in (found, alone)
                )
                worst, seen = max(worst, float((got - right).abs().max())), seen + 1
            if seen >= JUDGED:
                break
    return worst


def sequences_of(batch: Any, logits: torch.Tensor, ours: bool) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return the ids and the logits of each sequence of at least 2 tokens."""
    if ours:
        found = list(zip(batch.unpack_tokens(batch["input_ids"]), batch.unpack_tokens(logits), strict=True))
    elif "position_ids" in batch:
        ids, positions = batch["input_ids"][0], batch["position_ids"][0]
        sizes = np.diff([*torch.nonzero(positions == 0)[:, 0].tolist(), len(ids)]).tolist()
        found = list(zip(ids.split(sizes), logits[0].split(sizes), strict=True))
    else:
        sizes = batch["attention_mask"].sum(1).tolist()
        found = [(ids[:n], one[:n]) for ids, one, n in zip(batch["input_ids"], logits, sizes, strict=True)]
    return [(ids, one) for ids, one in found if len(ids) > 1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=int, default=256)
    parser.add_argument("--capacity", type=int, default=1024)
    parser.add_argument("--turns", type=int, default=2, help="epochs of each way, the steps of all ways in turns")
    parser.add_argument("--picture", type=Path, help="where to draw the loss over the seconds (.svg)")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    transformers.logging.set_verbosity_error()
    ids = texts_of(options.texts, options.capacity)
    total = sum(map(len, ids))
    torch.manual_seed(0)
    config = transformers.LlamaConfig(vocab_size=30_522, num_key_value_heads=4, use_cache=False, **SIZES)
    first = transformers.LlamaForCausalLM(config)
    print(f"{machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}, {versions()}")
    print(f"{len(ids)} texts, {total:,} tokens, mean {total / len(ids):.0f}, longest {max(map(len, ids))}, one epoch")
    ways = {
        "padded, random batches": map(repadded, dealt(ids)),
        "padded, grouped by length": by_length(ids),
        "TRL packing (bfd)": trl_packing(ids, options.capacity),
        "TRL padding-free": trl_padding_free(ids),
        "nopad": dealt(ids),
    }
    if importlib.util.find_spec("axolotl") is None:
        print("axolotl multipack: left out, since axolotl cannot be imported")
    else:
        ways["axolotl multipack"] = multipack(ids, options.capacity)
    runs = {name: Run(first, ways[name], name == "nopad") for name in COLOURS if name in ways}
    for _ in range(options.turns):
        for run in runs.values():
            run.begin()
        for number in range(max(len(run.steps) for run in runs.values())):
            for run in runs.values():
                if number < len(run.steps):
                    run.step(number)
    padded_run, ours = runs["padded, random batches"], runs["nopad"]
    for name, run in runs.items():
        judge = copy.deepcopy(padded_run.model).eval()
        show(name, run, padded_run, error_of(nopad.packed(judge) if run.ours else judge, run.batches(), run.ours))
    same = [abs(one - other) for one, other in zip(padded_run.losses, ours.losses, strict=True)]
    print(f"the losses of nopad and of padded batches, step by step, differ by at most {max(same):.1e}")
    if options.picture:
        draw(runs, options.picture)


def repadded(step: list[Any]) -> list[Batch]:
    """Return the same sequences, each batch padded to the longest of them."""
    return [padded([one.numpy() for one in batch.unpack_tokens(batch["input_ids"])]) for batch in step]


def versions() -> str:
    import trl

    axolotl = importlib.util.find_spec("axolotl") and f", axolotl {importlib.metadata.version('axolotl')}"
    return f"transformers {transformers.__version__}, trl {trl.__version__}{axolotl or ''}"


def show(name: str, run: Run, padded_run: Run, worst: float) -> None:
    seconds = sum(run.seconds)
    rate = run.tokens / seconds
    times = rate / (padded_run.tokens / sum(padded_run.seconds))
    print(
        f"{name:<26}{seconds:7.1f} s  {rate:7,.0f} tokens/s  {times:5.2f} x  {1 - run.tokens / run.slots:6.1%} padding  "
        f"{worst:8.1e} from alone  {len(run.steps):3} steps  loss {statistics.mean(run.losses[-3:]):.3f}",
        flush=True,
    )


def draw(runs: dict[str, Run], path: Path) -> None:
    """Draw each way's loss over the seconds, smoothed over three steps."""
    import altair as alt

    values = [
        {"way": name, "seconds": seconds, "loss": statistics.mean(run.losses[max(at - 2, 0) : at + 1])}
        for name, run in runs.items()
        for at, seconds in enumerate(itertools.accumulate(run.seconds))
    ]
    base = alt.Chart(alt.Data(values=values), width=560, height=260)
    dashes = [[1, 0], [6, 3], [6, 2, 1, 2], [2, 2], [4, 2], [1, 0]]
    shown = {"domain": list(COLOURS), "range": list(COLOURS.values())}
    lines = base.mark_line(strokeWidth=2.5).encode(
        x=alt.X("seconds:Q", title="seconds on 2 CPU cores"),
        y=alt.Y("loss:Q", title="loss of a step", scale=alt.Scale(zero=False)),
        color=alt.Color(
            "way:N",
            title=None,
            scale=alt.Scale(**shown),
            legend=alt.Legend(orient="bottom", columns=3, labelLimit=200, columnPadding=30),
        ),
        strokeDash=alt.StrokeDash("way:N", scale=alt.Scale(domain=list(COLOURS), range=dashes), legend=None),
    )
    lines.save(path)


if __name__ == "__main__":
    main()
