"""Fine-tuning after pre-training: a classifier on top of pre-trained weights, over many seeds.

The task is to tell which package of the standard library a text comes from. In the paper, fine-tuning is not packed;
here it is, since a packed step equals an unpacked one (docs/internals/equality.md).

Source: arXiv 2107.02027, section 4.3 and Table 3: SQuAD after packed and after ordinary pre-training, median of ten
seeds.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch

import nopad
from nopad import random
from nopad.loading import PackedLoader
from nopad.sequences import Sequences
from nopad.study.learning.material import Material
from nopad.study.learning.runs import Size, model_of
from nopad.tasks import Classification

__all__ = ["TOPICS", "Sets", "sets_of", "tuned"]

TOPICS = 8
EPOCHS = 3
RATE = 1e-3

Sets = tuple[Classification, Sequences, Sequences]


def sets_of(material: Material, size: Size) -> Sets:
    """Return ``(task, learned, tested)``: the task, the texts to fine-tune on, and the texts to test on.

    The texts are `Sequences` with labels. They come from the eight topics (modules or packages) with the most texts:
    the same number from each topic, or all texts of a topic that has fewer. They are then divided at random: a third of
    them, but at most `size.tests`, are to test on. Of the others, at most `size.tuned` are to fine-tune on.
    """
    common = [topic for topic, _ in Counter(topic for _, topic in material.texts).most_common(TOPICS)]
    each = -(-(size.tuned + size.tests) // TOPICS)
    found: list[dict[str, Any]] = []
    for number, topic in enumerate(common):
        of = [text for text, one in material.texts if one == topic][:each]
        found += [{"text": text, "label": number} for text in of]
    order = list(range(len(found)))
    random.shuffle(order, random.key(1))
    task = Classification(material.task.tokenizer, TOPICS, max_length=material.capacity, over_long="truncate")
    test = min(size.tests, len(found) // 3)
    tested, learned = ([found[at] for at in part] for part in (order[:test], order[test : test + size.tuned]))
    return task, task.encode(learned).sequences, task.encode(tested).sequences


def tuned(weights: dict[str, torch.Tensor], sets: Sets, material: Material, size: Size, seed: int) -> float:
    """Fine-tune a classifier and return its accuracy on the test texts, from 0 to 1.

    Args:
        weights: state dict of a pre-trained model; the classifier starts from the weights of this model's encoder.
        sets: the task and its texts, from `sets_of`.
        material: the material that the weights were pre-trained on.
        size: the size of the pre-trained model.
        seed: random seed for the classifier's head and the order of the texts.
    """
    import transformers

    task, learned, tested = sets
    config = model_of(material, size, seed).config
    config.num_labels = TOPICS
    torch.manual_seed(seed)
    model = transformers.BertForSequenceClassification(config).train()
    model.load_state_dict({name: value for name, value in weights.items() if name.startswith("bert.")}, strict=False)
    nopad.packed(model, backend="mask")
    loader = PackedLoader(learned, material.capacity, rows=8, seed=seed, last="fill", prefetch=1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    objective, total = task.objective, EPOCHS * len(loader)
    for step, batch in enumerate(batch for _ in range(EPOCHS) for batch in loader):
        for group in optimizer.param_groups:
            group["lr"] = RATE * (1 - step / total)
        loss, _ = objective.step(model, batch, objective.count(batch).clamp_min(1))
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
    meter = objective.meter()
    with torch.no_grad():
        for batch in PackedLoader(tested, material.capacity, rows=16, last="fill", prefetch=1):
            meter.add(objective.outputs(model, batch), batch)
    return float(meter.values()["accuracy"])
