"""Pre-training: pairs of documents, masks, two means with a denominator each; packs against each sequence alone."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers
from tests.tasks.equality import check_equal, jointly, packed
from tests.tasks.tiny import bert, tokenizer, wordpieces, words
from torch.nn.functional import cross_entropy

import nopad
from nopad.errors import LengthError, OptionError, RecordError
from nopad.sequences import Sequences
from nopad.tasks import OfPretraining, Pretraining, objective_of, predict

NEXT = "next_sentence_label"


def documents(count=24, seed=0):
    """Documents of lines, each a sentence."""
    generator = torch.Generator().manual_seed(seed)
    drawn = [torch.randint(1, 7, (2,), generator=generator).tolist() for _ in range(count)]
    return [{"text": "\n".join(words(generator, length + at) for at in range(lines + 1))} for lines, length in drawn]


def pretraining(**options):
    return Pretraining(tokenizer(), **{"max_length": 24, "sentences": "line", "seed": 3, **options})


def as_batched(task, examples):
    """The examples as the batches of the first epoch have them: masked, with labels."""
    if "labels" in examples.sequences.tokens:
        return examples
    numbered = replace(examples.sequences, values={**examples.sequences.values, "seq_index": np.arange(len(examples))})
    return replace(examples, sequences=task.masking.masked(numbered, 0))


def judge(examples, per="token", next_sentence=True):
    """The loss of all sequences, of what each gives alone."""
    begins, lengths = examples.sequences.begins, examples.sequences.seq_lengths

    def labels_of(number):
        span = slice(int(begins[number]), int(begins[number]) + int(lengths[number]))
        return torch.from_numpy(examples.sequences.tokens["labels"][span].astype("int64"))

    def loss(outputs):
        masked, follows = [], []
        for number, one in enumerate(outputs):
            labels = labels_of(number)
            at = labels >= 0
            masked.append(cross_entropy(one.prediction_logits[0][at], labels[at], reduction="none"))
            label = torch.tensor([int(examples.sequences.values[NEXT][number])])
            follows.append(cross_entropy(one.seq_relationship_logits, label))
        tokens = (
            torch.cat(masked).mean() if per == "token" else torch.stack([m.mean() for m in masked if len(m)]).mean()
        )
        return tokens + torch.stack(follows).mean() if next_sentence else tokens

    return loss


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize(("per", "next_sentence"), [("token", True), ("sequence", True), ("token", False)])
def test_packs_change_neither_loss_nor_gradients_nor_metrics(static, per, next_sentence):
    task = pretraining(static=static, per=per, next_sentence=next_sentence)
    examples = task.encode(documents())
    batched = as_batched(task, examples)
    labels = batched.sequences.tokens["labels"]
    assert 0 < (labels >= 0).sum() < labels.size / 4
    assert set(batched.sequences.values[NEXT].tolist()) == {0, 1}
    model = bert(task, "BertForPreTraining")
    kept = []

    def loss(outputs):
        kept.extend(outputs)
        return judge(batched, per, next_sentence)(outputs)

    alone = jointly(model, batched, loss)
    guesses = np.concatenate([one.prediction_logits[0].argmax(-1).numpy() for one in kept])
    right = (guesses == labels)[labels >= 0]
    follows = [int(one.seq_relationship_logits.argmax()) for one in kept]
    for world_size in (1, 2):
        found, gradients, meter = packed(model, task, examples, world_size=world_size)
        unlearned = gradients.keys() - alone[1].keys()  # next sentences' own, where a rank had nothing left to do
        assert not unlearned or not next_sentence
        assert not any(gradients[name].any() for name in unlearned)
        check_equal(alone, (found, {name: value for name, value in gradients.items() if name not in unlearned}))
        values = meter.values()
        if per == "token":
            assert values["accuracy"] == pytest.approx(right.mean(), abs=1e-12)
        if next_sentence:
            share = (np.array(follows) == batched.sequences.values[NEXT]).mean()
            assert values["next_sentence_accuracy"] == pytest.approx(share, abs=1e-12)
            assert values["masked_loss"] + values["next_sentence_loss"] == pytest.approx(alone[0], abs=1e-12)
        else:
            assert "next_sentence_accuracy" not in values


def test_the_loss_is_that_of_transformers_for_one_sequence():
    task = pretraining(static=True)
    examples = task.encode(documents(2))
    model = bert(task, "BertForPreTraining")
    one = examples.sequences.take(np.array([0])).gathered()
    ids, types, labels = (
        torch.from_numpy(one.tokens[name].astype("int64"))[None] for name in ("input_ids", "token_type_ids", "labels")
    )
    label = torch.tensor([int(one.values[NEXT][0])])
    theirs = model(input_ids=ids, token_type_ids=types, labels=labels, next_sentence_label=label).loss.item()
    nopad.packed(model)
    (batch,) = nopad.PackedLoader(one, 64, rows=1)
    loss, _ = task.objective.step(model, batch)
    assert loss.item() == pytest.approx(theirs, rel=1e-12)
    assert isinstance(objective_of(model), OfPretraining)


def test_no_label_of_a_kind_is_no_nan():
    """A pack whose sequences have no masked token, or no next-sentence label, still has the other part's loss."""
    task = pretraining(static=True)
    made = task.encode(documents()).sequences
    model = bert(task, "BertForPreTraining")
    nopad.packed(model)
    for name in ("labels", NEXT):
        blank = {name: np.full_like({**made.tokens, **made.values}[name], -100)}
        tokens = {**made.tokens, **(blank if name == "labels" else {})}
        values = {**made.values, **(blank if name == NEXT else {})}
        (batch, *_) = nopad.PackedLoader(
            Sequences(seq_lengths=made.seq_lengths, tokens=tokens, values=values), 64, rows=1
        )
        loss, outputs = task.objective.step(model, batch)
        other = task.objective.each(outputs, batch, torch.ones(2))[1 if name == "labels" else 0]
        count = task.objective.count(batch)[1 if name == "labels" else 0]
        assert loss.item() == pytest.approx((other / count).item(), rel=1e-9)


def test_masks_move_or_stay():
    moving, still = pretraining(), pretraining(static=True)
    seen = []
    for task in (moving, still):
        loader = task.loader(task.encode(documents()), 64, rows=1)
        epochs = [
            {
                int(number): tuple(labels.tolist())
                for batch in loader
                for number, labels in zip(batch.records["seq_index"], batch.unpack_tokens(batch["labels"]), strict=True)
            }
            for _ in range(2)
        ]
        seen.append(sum(epochs[0][n] != epochs[1][n] for n in epochs[0]))
        assert epochs[0].keys() == epochs[1].keys()
    assert seen[0] > 20
    assert seen[1] == 0


def test_predictions_are_as_many_as_berts():
    task = pretraining(static=True, max_length=24, max_predictions=2)
    made = task.encode(documents()).sequences
    counts = np.add.reduceat(made.tokens["labels"] >= 0, made.begins)
    np.testing.assert_array_equal(counts, np.clip(np.floor(0.15 * made.seq_lengths + 0.5), 1, 2))


def test_whole_words():
    text = "\n".join(["Londons cat houses Romes", "dogs rivers cat"] * 6)
    task = Pretraining(
        wordpieces(), max_length=48, sentences="line", whole_words=True, static=True, rate=0.5, max_predictions=40
    )
    made = task.encode([{"text": text}] * 4).sequences
    chosen, marks = made.tokens["labels"] >= 0, np.where(made.tokens["labels"] >= 0, made.tokens["labels"], -1)
    known = {n for t, n in wordpieces().get_vocab().items() if t.startswith("##")}
    ids = np.where(chosen, marks, made.tokens["input_ids"])
    later = np.flatnonzero(np.isin(ids, list(known)) & (np.roll(ids, 1) > 9))
    assert later.size > 20
    assert (chosen[later] == chosen[later - 1]).all()
    with pytest.raises(OptionError, match="whole_words needs a vocabulary of WordPiece"):
        pretraining(whole_words=True)


def test_the_seed_decides():
    one, same, other = (pretraining(seed=seed).encode(documents()).sequences for seed in (3, 3, 4))
    np.testing.assert_array_equal(one.tokens["input_ids"], same.tokens["input_ids"])
    assert one.tokens["input_ids"].tolist() != other.tokens["input_ids"].tolist()
    twice = pretraining(copies=2).encode(documents())
    assert len(twice) > 1.5 * len(one)
    assert twice.record.tolist() == sorted(twice.record.tolist())


def test_what_it_refuses():
    with pytest.raises(
        RecordError,
        match="2 documents: 1 with a sentence that fits, and a random next sentence comes from another",
    ):
        pretraining().encode([{"text": "cat dog\nred"}, {"text": " "}])
    with pytest.raises(RecordError, match=r"2 documents: none has two sentences, .*task mask"):
        pretraining().encode([{"text": "cat dog"}, {"text": "red"}])
    long = [{"text": "cat\n" + "dog " * 30}, {"text": "red\nblue"}]
    with pytest.raises(LengthError, match=r"record 0 has a sentence of 30 tokens, .* it may have 20; choose over_long"):
        pretraining().encode(long)
    assert pretraining(over_long="split").encode(long).counts["long_sentences"] == 1
    with pytest.raises(OptionError, match="max_length is missing"):
        pretraining(max_length=None).encode(long)
    with pytest.raises(OptionError, match="max_predictions is 30, and a pair of 24 tokens has 21"):
        pretraining(max_predictions=30)
    bare = copy.deepcopy(tokenizer())
    bare.mask_token = None
    with pytest.raises(OptionError, match="has no mask token"):
        Pretraining(bare)
    bare = copy.deepcopy(tokenizer())
    bare.cls_token = None
    with pytest.raises(OptionError, match=r"has no \[CLS\], and pairs for pre-training are made with"):
        Pretraining(bare)
    task = pretraining()
    batch = next(iter(task.loader(task.encode(documents()), 64, rows=1)))
    model = nopad.packed(bert(task, "BertForMaskedLM"))
    with pytest.raises(OptionError, match=r"the model gives logits, and what is to be learned reads prediction_logits"):
        task.objective.step(model, batch)


def test_predictions_of_pairs():
    task = pretraining(top=2)
    model = bert(task, "BertForPreTraining").eval()
    assert isinstance(model, transformers.BertForPreTraining)
    given = [{"text": "the [MASK] eats", "pair": "a [MASK] cat [MASK]"}, {"text": "red", "pair": "blue"}]
    found = list(predict(task, model, given))
    assert [len(one["fill"]) for one in found] == [3, 0]
    encoded = tokenizer()(given[0]["text"], given[0]["pair"], return_tensors="pt")
    nopad.unpacked(model)
    outputs = model(**encoded)
    assert found[0]["next"] == pytest.approx(torch.softmax(outputs.seq_relationship_logits, -1)[0, 0].item(), abs=1e-9)
    best = outputs.prediction_logits[0][encoded["input_ids"][0] == tokenizer().mask_token_id].argmax(-1)
    assert [fill[0]["id"] for fill in found[0]["fill"]] == best.tolist()


def test_pairs_for_which_the_model_gives_nan_are_named():
    task = pretraining(top=2)
    model = bert(task, "BertForPreTraining").eval()
    with torch.no_grad():
        model.cls.seq_relationship.bias.fill_(float("nan"))
    with pytest.raises(RecordError, match=r"record [01]: the model gives NaN for it"):
        list(predict(task, model, [{"text": "a cat", "pair": "red"}, {"text": "red", "pair": "blue"}]))


def test_pairs_may_be_a_stream():
    """Documents that are not packed yet, read while a loader runs, masked by the task; a state goes on."""
    import itertools

    from nopad.corpus import IterableSource, PairOptions, PretrainingSource

    task = pretraining()
    texts = [one["text"] for one in documents(60)]
    options = PairOptions(max_length=24, sentences="line", pool_bytes=1000)

    def loader():
        source = PretrainingSource(IterableSource(texts), nopad.load_tokenizer(tokenizer()), options)
        return nopad.PackedLoader(source, 48, rows=2, collate=task.collate, exhausted="repeat")

    def seen(batches):
        return [(batch["input_ids"].tolist(), batch["labels"].tolist(), batch[NEXT].tolist()) for batch in batches]

    whole = seen(itertools.islice(loader(), 8))
    first = loader()
    begun = seen(itertools.islice(first, 3))
    again = loader()
    again.load_state_dict(first.state_dict())
    assert begun + seen(itertools.islice(again, 5)) == whole
    model = nopad.packed(bert(task, "BertForPreTraining"))
    loss, _ = task.objective.step(model, next(iter(loader())))
    assert loss.isfinite()
