"""The README's table: one causal model fine-tuned on the same texts, batched in the ways that people use today.

Real texts of the standard library (docstrings of 200 characters and more), one epoch, a step of 32 sequences or packs
that hold as many; a model of 4 x 256 with BERT's vocabulary; the same first weights and the same optimiser in one plain
loop. "padded" and "nopad" take the very same sequences in every step, so their curves can be laid on each other. TRL's
own functions make its packs (`pack_dataset`, strategy "bfd") and its batches (`DataCollatorForLanguageModeling`). Sorting
is Hugging Face's group_by_length: sorted within 50 batches, batches in a random order.

Each line has the seconds of the epoch, the padding, how far the loss of any sequence is from what it gets alone (after
the epoch, the same weights for all ways), the steps, and the loss of the last steps.

    python benchmarks/front.py [--texts 320] [--capacity 1024] [--picture docs/pictures/front.svg]
"""

from __future__ import annotations

import argparse
import copy
import logging
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
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
PER_STEP = 32
JUDGED = 64  # sequences whose losses are compared with those alone
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


def dealt(ids: list[np.ndarray]) -> Iterator[Any]:
    """Batches of nopad: 32 sequences of an epoch's order each, in one row without padding."""
    yield from nopad.PackedLoader(ids, sequences=PER_STEP, last="drop", collate=nopad.loading.causal)


def by_length(ids: list[np.ndarray]) -> Iterator[Batch]:
    draw = np.random.default_rng(0)
    order = draw.permutation(len(ids))
    window = 50 * PER_STEP
    order = np.concatenate(
        [sorted(order[at : at + window], key=lambda one: -len(ids[one])) for at in range(0, len(ids), window)]
    )
    for at in draw.permutation(len(ids) // PER_STEP):
        yield padded([ids[one] for one in order[at * PER_STEP : (at + 1) * PER_STEP]])


def trl_batches(ids: list[np.ndarray], capacity: int, packing: bool) -> Iterator[Batch]:
    import datasets
    from trl.data_utils import pack_dataset
    from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

    collate = DataCollatorForLanguageModeling(pad_token_id=0, padding_free=True)
    found = datasets.Dataset.from_dict({"input_ids": [one.tolist() for one in ids]})
    per_step = PER_STEP
    if packing:
        found = pack_dataset(found, capacity, "bfd")
        per_step = max(round(PER_STEP * len(found) / len(ids)), 1)
    order = np.random.default_rng(0).permutation(len(found))
    for at in range(0, len(found) - per_step + 1, per_step):
        yield collate([found[int(row)] for row in order[at : at + per_step]])


def run(model: Any, batches: Iterator[Any], ours: bool) -> tuple[list[tuple[float, float]], int, int]:
    """Train; return (seconds so far, loss) of each step, and the numbers of slots and of real tokens."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    objective = OfTokens(causal=True)
    points, slots, tokens, begin = [], 0, 0, time.perf_counter()
    for batch in batches:
        if ours:
            loss = objective.step(model, batch)[0]
            slots, tokens = slots + batch.layout.slots, tokens + batch.layout.tokens
        else:
            loss = model(**batch).loss
            slots += batch["input_ids"].numel()
            tokens += int(batch.get("attention_mask", torch.ones_like(batch["input_ids"])).sum())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        points.append((time.perf_counter() - begin, loss.item()))
    return points, slots, tokens


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
    parser.add_argument("--texts", type=int, default=320)
    parser.add_argument("--capacity", type=int, default=1024)
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
    ways: dict[str, tuple[Callable[[], Iterator[Any]], bool]] = {
        "padded, random batches": (lambda: map(repadded, dealt(ids)), False),
        "padded, grouped by length": (lambda: by_length(ids), False),
        "TRL packing (bfd)": (lambda: trl_batches(ids, options.capacity, True), False),
        "TRL padding-free": (lambda: trl_batches(ids, options.capacity, False), False),
        "nopad": (lambda: dealt(ids), True),
    }
    found: dict[str, Any] = {}
    for name, (batches, ours) in ways.items():
        model = copy.deepcopy(first)
        if ours:
            nopad.packed(model)
        run(copy.deepcopy(model) if not ours else model, iter(list(batches())[:1]), ours)  # warm
        model = nopad.packed(copy.deepcopy(first)) if ours else copy.deepcopy(first)
        points, slots, tokens = run(model, batches(), ours)
        found[name] = (points, slots, tokens)
        if name == "padded, random batches":
            judge = model
        judged = nopad.packed(judge) if ours else judge
        worst = error_of(judged.eval(), batches(), ours)
        if ours:
            nopad.unpacked(judge)
        show(name, found, worst)
    same = [abs(a[1] - b[1]) for a, b in zip(found["padded, random batches"][0], found["nopad"][0], strict=True)]
    print(f"the losses of nopad and of padded batches, step by step, differ by at most {max(same):.1e}")
    if options.picture:
        draw(found, options.picture)


def repadded(batch: Any) -> Batch:
    """Return the same sequences, padded to the longest of them."""
    return padded([one.numpy() for one in batch.unpack_tokens(batch["input_ids"])])


def versions() -> str:
    import trl

    return f"transformers {transformers.__version__}, trl {trl.__version__}"


def show(name: str, found: dict[str, Any], worst: float) -> None:
    points, slots, tokens = found[name]
    seconds = points[-1][0]
    rate, base = tokens / seconds, found["padded, random batches"]
    times = rate / (base[2] / base[0][-1][0])
    last = statistics.mean(loss for _, loss in points[-3:])
    print(
        f"{name:<26}{seconds:7.1f} s  {rate:7,.0f} tokens/s  {times:5.2f} x  {1 - tokens / slots:6.1%} padding  "
        f"{worst:8.1e} from alone  {len(points):3} steps  loss {last:.3f}",
        flush=True,
    )


def draw(found: dict[str, Any], path: Path) -> None:
    """Draw each way's loss over the seconds, smoothed over three steps."""
    import altair as alt

    values = [
        {"way": name, "seconds": seconds, "loss": statistics.mean(loss for _, loss in points[max(at - 2, 0) : at + 1])}
        for name, (points, _, _) in found.items()
        for at, (seconds, _) in enumerate(points)
    ]
    base = alt.Chart(alt.Data(values=values), width=560, height=260)
    lines = base.mark_line(strokeWidth=2.5).encode(
        x=alt.X("seconds:Q", title="seconds on 2 CPU cores"),
        y=alt.Y("loss:Q", title="loss of a step", scale=alt.Scale(zero=False)),
        color=alt.Color("way:N", title=None, sort=list(found)),
        strokeDash=alt.StrokeDash("way:N", title=None, sort=list(found)),
    )
    lines.save(path)


if __name__ == "__main__":
    main()
