"""Results per sequence are in the order given, in every form and by every way; the judge is each sequence alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import transformers
from torch.nn.functional import cross_entropy
from zoo import build

import nopad
from nopad.model import static_inputs

LENGTHS = [3, 30, 1, 22, 9, 30, 2, 17]  # best fit decreasing takes them in another order
FORMS = {
    "flat": {"form": nopad.Flat()},
    "rows": {"form": nopad.Rows(40)},
    "depth": {"form": nopad.Rows(60, depth=2)},
    "end to end": {"form": nopad.Rows(37, end_to_end=True)},
}
HEADS = [
    ("bert", "base", ["pooler_output"]),
    ("albert", "base", ["pooler_output"]),
    ("bert", "sequence classification", ["logits"]),
    ("modernbert", "sequence classification", ["logits"]),
    ("deberta-v2", "sequence classification", ["logits"]),
    ("distilbert", "sequence classification", ["logits"]),
    ("llama", "sequence classification", ["logits"]),
    ("bert", "question answering", ["start_logits", "end_logits"]),
    ("bert", "next sentence", ["logits"]),
]


@pytest.fixture(scope="module")
def shuffled():
    generator = torch.Generator().manual_seed(4)
    return [torch.randint(5, 99, (n,), generator=generator) for n in LENGTHS]


def alone(model, sequences, names):
    with torch.no_grad():
        outputs = [model(input_ids=ids[None]) for ids in sequences]
    return {name: [output[name][0] for output in outputs] for name in names}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("backend", ["segments", "mask", "repack"])
@pytest.mark.parametrize(("kind", "head", "names"), HEADS, ids=lambda value: str(value).replace(" ", "-"))
def test_results_are_in_the_order_given(shuffled, kind, head, names, backend, form):
    if backend == "mask" and form == "end to end":
        pytest.skip("a mask over rows cannot follow sequences into the next one; that is refused elsewhere")
    model = build(kind, head)
    wanted = alone(model, shuffled, names)
    nopad.packed(model, backend=backend)
    batch = nopad.PackedBatch.from_sequences(shuffled, **FORMS[form])
    with torch.no_grad():
        output = model(**batch)
    for name in names:
        for number, ids in enumerate(shuffled):
            found = output[name][number]
            found = found[: ids.numel()] if name.endswith("_logits") else found
            torch.testing.assert_close(found, wanted[name][number], atol=1e-12, rtol=0)


@pytest.mark.parametrize("form", ["rows", "depth"])
@pytest.mark.parametrize(("kind", "head"), [("bert", "sequence classification"), ("llama", "sequence classification")])
def test_results_of_static_shapes_too(shuffled, kind, head, form):
    model = build(kind, head)
    wanted = alone(model, shuffled, ["logits"])["logits"]
    nopad.packed(model, max_sequences=10)
    batch = nopad.PackedBatch.from_sequences(shuffled, **FORMS[form])
    with torch.no_grad():
        found = model(**static_inputs(model, batch)).logits[: len(shuffled)]
    torch.testing.assert_close(found, torch.stack(wanted), atol=1e-12, rtol=0)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", ["bert", "llama"])
def test_labels_meet_their_own_sequence(shuffled, kind, form):
    model = build(kind, "sequence classification", num_labels=3)
    labels = [0, 2, 1, 1, 0, 2, 2, 1]
    wanted = cross_entropy(torch.stack(alone(model, shuffled, ["logits"])["logits"]), torch.tensor(labels))
    batch = nopad.PackedBatch.from_sequences(shuffled, columns={"labels": labels}, **FORMS[form])
    assert batch["labels"].tolist() == labels
    with torch.no_grad():
        found = nopad.packed(model)(**batch).loss
    torch.testing.assert_close(found, wanted, atol=1e-12, rtol=0)


@pytest.mark.parametrize("form", ["flat", "rows", "depth"])
def test_predictions_of_a_trainer_are_in_the_order_of_its_dataset(tmp_path, form):
    generator = torch.Generator().manual_seed(6)
    lengths = torch.randint(1, 30, (22,), generator=generator).tolist()
    rows = [
        {"input_ids": torch.randint(5, 99, (n,), generator=generator).tolist(), "labels": at % 3}
        for at, n in enumerate(lengths)
    ]
    how = {name: value for name, value in FORMS[form].items() if name != "end_to_end"}

    def padded(features):
        longest = max(len(feature["input_ids"]) for feature in features)
        fill = [[0] * (longest - len(feature["input_ids"])) for feature in features]
        return {
            "input_ids": torch.tensor([f["input_ids"] + more for f, more in zip(features, fill, strict=True)]),
            "attention_mask": torch.tensor(
                [[1] * len(f["input_ids"]) + more for f, more in zip(features, fill, strict=True)]
            ),
            "labels": torch.tensor([f["labels"] for f in features]),
        }

    def predicted(model, collate):
        arguments = transformers.TrainingArguments(
            output_dir=str(tmp_path),
            per_device_eval_batch_size=8,
            use_cpu=True,
            report_to=[],
            disable_tqdm=True,
            remove_unused_columns=False,
        )
        return transformers.Trainer(model, arguments, data_collator=collate).predict(rows)

    usual = predicted(build("bert", "sequence classification", num_labels=3), padded)
    model = nopad.packed(build("bert", "sequence classification", num_labels=3))
    found = predicted(model, lambda features: nopad.PackedBatch.from_features(features, **how))
    assert found.predictions.shape == (22, 3)
    np.testing.assert_allclose(found.predictions, usual.predictions, atol=1e-6)
    assert found.metrics["test_loss"] == pytest.approx(usual.metrics["test_loss"], abs=1e-6)
    assert found.label_ids.tolist() == usual.label_ids.tolist() == [at % 3 for at in range(22)]
