"""Classification of texts and pairs: what records become, and that packs change neither loss, gradients nor metrics."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import pearsonr
from tests.tasks.equality import check_equal, packed, unpacked
from tests.tasks.tiny import bert, llama, tokenizer, words
from torch.nn import functional

from nopad.errors import LengthError, OptionError, RecordError
from nopad.losses import Confusion
from nopad.tasks import GLUE, Classification, Regression, SeveralLabels, TokenClassification, glue

COUNT = 23


def records(label, pair=False, seed=0):
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 25, (COUNT, 2), generator=generator).tolist()
    made = [{"text": words(generator, a), "label": label(n)} for n, (a, _) in enumerate(lengths)]
    if pair:
        for record, (_, b) in zip(made, lengths, strict=True):
            record["second"] = words(generator, b)
    return made


def cases():
    names = ["bad", "fair", "good"]
    yield "classes", Classification(tokenizer(), names), records(lambda n: names[n * n % 3])
    yield "pairs", Classification(tokenizer(), 2, pair="second"), records(lambda n: n % 2, pair=True)
    yield (
        "several",
        SeveralLabels(tokenizer(), names, label="label"),
        records(lambda n: [names[n % 3]] if n % 4 else []),
    )
    yield "numbers", Regression(tokenizer()), records(lambda n: n / 7 - 1)


def judged(name, labels):
    def loss(outputs, number):
        logits = outputs.logits[0]
        label = torch.as_tensor(labels[number])
        if name == "several":
            share = torch.sigmoid(logits)
            return -(label * share.log() + (1 - label) * (1 - share).log()).mean(), 1
        if name == "numbers":
            return (logits[0] - label.double()) ** 2, 1
        return -torch.log_softmax(logits, 0)[label], 1

    return loss


@pytest.mark.parametrize("build", [bert, llama])
@pytest.mark.parametrize("name", ["classes", "pairs", "several", "numbers"])
def test_packs_change_neither_loss_nor_gradients(name, build):
    task, made = next((task, made) for one, task, made in cases() if one == name)
    examples = task.encode(made)
    if build is llama and "token_type_ids" in examples.sequences.tokens:
        examples.sequences.tokens.pop("token_type_ids")
    model = build(task)
    alone = unpacked(model, examples, judged(name, examples.sequences.values["labels"]))
    for world_size in (1, 2):
        loss, gradients, _ = packed(model, task, examples, world_size=world_size)
        check_equal(alone, (loss, gradients))


@pytest.mark.parametrize("name", ["classes", "several", "numbers"])
def test_metrics_are_those_of_single_sequences(name):
    task, made = next((task, made) for one, task, made in cases() if one == name)
    examples, model = task.encode(made), bert(task)
    labels = examples.sequences.values["labels"]
    logits = []
    unpacked(model, examples, lambda out, n: (logits.append(out.logits[0].detach()) or out.logits.sum(), 1))
    logits = torch.stack(logits).numpy()
    found = packed(model, task, examples)[2].values()
    if name == "classes":
        guess = logits.argmax(1)
        assert found["accuracy"] == np.mean(guess == labels)
        assert found["matthews_correlation"] == pytest.approx(matthews(guess, labels), abs=1e-12)
    elif name == "several":
        guess = logits > 0
        both = (guess & (labels > 0)).sum()
        assert found["f1"] == pytest.approx(2 * both / (guess.sum() + labels.sum()))
        assert found["accuracy"] == np.mean((guess == (labels > 0)).all(1))
    else:
        assert found["pearson"] == pytest.approx(pearsonr(logits[:, 0], labels).statistic, abs=1e-9)
        assert found["mse"] == pytest.approx(np.mean((logits[:, 0] - labels) ** 2))


def matthews(guess, labels):
    """The correlation of indicator variables, summed over classes before dividing."""
    a, b = (np.eye(3)[side] - np.eye(3)[side].mean(0) for side in (guess, labels))
    spread = np.sqrt((a * a).sum() * (b * b).sum())
    return (a * b).sum() / spread if spread else 0.0


def test_matthews_correlation_of_random_guesses():
    generator = np.random.default_rng(0)
    labels, logits = generator.integers(0, 3, 50), generator.normal(size=(50, 3))
    confusion = Confusion(3)
    confusion.add(torch.from_numpy(logits), torch.from_numpy(labels))
    assert confusion.matthews == pytest.approx(matthews(logits.argmax(1), labels), abs=1e-12)


def test_labels_that_mean_two_things_are_refused():
    several = SeveralLabels(tokenizer(), ["x", "y", "z"])
    assert several.encode([{"text": "is", "labels": ["z", 0]}]).sequences.values["labels"].tolist() == [[1, 0, 1]]
    for marks in ([0, 1, 0], [1, 1, 1], np.array([0, 0, 0])):
        with pytest.raises(RecordError, match=r"record 0: labels is .* twice; .* and not a 0 or 1 for each class"):
            several.encode([{"text": "is", "labels": marks}])
    stars = ["1", "2", "3"]
    for task, record in (
        (Classification(tokenizer(), stars), {"text": "is", "label": 1}),
        (SeveralLabels(tokenizer(), stars), {"text": "is", "labels": [1]}),
        (TokenClassification(tokenizer(), stars), {"words": ["is"], "tags": [np.int64(1)]}),
    ):
        with pytest.raises(RecordError, match="the number 1, which is the class '2' by number, and the class '1' by"):
            task.encode([record])
    assert Classification(tokenizer(), stars).encode([{"text": "is", "label": "1"}]).sequences.values["labels"] == [0]
    assert Classification(tokenizer(), 3).encode([{"text": "is", "label": 1}]).sequences.values["labels"] == [1]


def test_results_are_in_the_order_of_the_batch():
    task = Classification(tokenizer(), ["no", "yes"])
    logits = torch.tensor([[2.0, 0.0], [0.0, 1.0]])
    first, second = task.results({"logits": logits}, None)
    assert (first["label"], second["label"]) == ("no", "yes")
    assert sum(first["probabilities"]) == pytest.approx(1)
    assert first["probabilities"][1] == pytest.approx(functional.softmax(logits, -1)[0, 1].item())


def test_sequences_are_what_the_tokenizer_makes():
    task = Classification(tokenizer(), pair="second")
    made = task.encode([{"text": "is it ?", "second": "yes", "label": 1}, {"text": "why", "second": "no", "label": 0}])
    wanted = [tokenizer()("is it ?", "yes"), tokenizer()("why", "no")]
    for name in ("input_ids", "token_type_ids"):
        assert made.sequences.tokens[name].tolist() == [value for one in wanted for value in one[name]]
    assert made.record.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("over_long", "left", "counts"), [("truncate", 3, {"truncated": 1}), ("drop", 2, {"dropped": 1})]
)
def test_what_is_too_long_is_counted(over_long, left, counts):
    task = Classification(tokenizer(), max_length=6, over_long=over_long)
    made = task.encode([{"text": text, "label": 1} for text in ("is it ?", "one two three four five", "why")])
    assert (len(made), made.counts, made.records) == (left, counts, 3)
    assert made.sequences.seq_lengths.max() <= 6
    assert made.record.tolist() == ([0, 1, 2] if left == 3 else [0, 2])
    assert task.merged([{"label": n} for n in range(left)], made)[1] == ({"label": 1} if left == 3 else None)


@pytest.mark.parametrize("label", [2, -1, 1.0, None, True, "maybe", [1]])
def test_a_label_that_is_no_class_is_refused(label):
    with pytest.raises(RecordError, match="record 1: label is"):
        Classification(tokenizer()).encode([{"text": "why", "label": 0}, {"text": "why", "label": label}])


@pytest.mark.parametrize("label", [float("nan"), float("inf"), "3", None, True])
def test_a_label_that_is_no_number_is_refused(label):
    with pytest.raises(RecordError, match="record 0: label is"):
        Regression(tokenizer()).encode([{"text": "why", "label": label}])


@pytest.mark.parametrize("label", [3, [2], ["what"], [True], None])
def test_labels_that_are_no_classes_are_refused(label):
    with pytest.raises(RecordError, match="record 0: labels is"):
        SeveralLabels(tokenizer(), 2).encode([{"text": "why", "labels": label}])


def test_other_bad_input_is_refused():
    task = Classification(tokenizer(), max_length=4)
    with pytest.raises(RecordError, match="record 0 has no 'text', only sentence"):
        task.encode([{"sentence": "why", "label": 0}])
    with pytest.raises(RecordError, match="record 0 has no 'label'"):
        task.encode([{"text": "why"}])
    with pytest.raises(RecordError, match="text is a int"):
        task.encode([{"text": 3, "label": 0}])
    with pytest.raises(RecordError, match="record 0 is a str"):
        task.encode(["why"])
    with pytest.raises(LengthError, match="record 0 has 5 tokens, and max_length is 4"):
        task.encode([{"text": "is it ?", "label": 0}])
    with pytest.raises(LengthError, match="there is no record"):
        task.encode([])
    with pytest.raises(OptionError, match="without max_length"):
        Classification(tokenizer(), over_long="drop")
    with pytest.raises(OptionError, match="over_long is 'split'"):
        Classification(tokenizer(), max_length=4, over_long="split")
    with pytest.raises(OptionError, match="at least 2"):
        Classification(tokenizer(), ["only"])
    with pytest.raises(OptionError, match="the tokenizer is a str"):
        Classification("bert-base-uncased")


def test_glue_has_the_columns_of_the_nine_sets():
    assert len(GLUE) == 9
    assert isinstance(glue("stsb", tokenizer()), Regression)
    task = glue("mnli", tokenizer())
    made = task.encode([{"premise": "is it", "hypothesis": "no", "label": 2, "idx": 0}])
    assert (made.sequences.values["labels"].tolist(), len(task.names)) == ([2], 3)
    with pytest.raises(OptionError, match="no set 'snli'"):
        glue("snli", tokenizer())


def test_labels_that_mean_two_things_are_refused_until_it_is_said_which():
    two = SeveralLabels(tokenizer(), ["a", "b"])
    for given in ([0, 1], [1, 0], np.array([0, 1])):
        with pytest.raises(RecordError, match=r"record 3: labels is \[.*say which: labels_as='classes' or 'flags'"):
            two.target(given, 3)
    assert two.target(["b", "a"], 0) == two.target(["a", 1], 0) == [1.0, 1.0]
    assert [two.target(given, 0) for given in ([], [0], [1])] == [[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]]
    assert SeveralLabels(tokenizer(), 2, labels_as="classes").target([0, 1], 0) == [1.0, 1.0]
    flags = SeveralLabels(tokenizer(), 2, labels_as="flags")
    assert flags.target([0, 1], 0) == flags.target((False, True), 0) == flags.target(np.array([0.0, 1.0]), 0) == [0, 1]
    assert flags.target(np.array([True, False]), 0) == [1, 0]
    assert SeveralLabels(tokenizer(), 3).target([0, 1], 0) == [1.0, 1.0, 0.0]
    for wrong in ([0], [0, 2], ["a", "b"], [0, 1, 0], [0.5, 1]):
        with pytest.raises(RecordError, match=r"record 0: labels is .* 0 or 1"):
            flags.target(wrong, 0)
    with pytest.raises(OptionError, match="labels_as is 'hot'"):
        SeveralLabels(tokenizer(), 2, labels_as="hot")


def test_a_name_where_no_classes_are_named_says_how_to_name_them():
    with pytest.raises(
        RecordError, match=r"label is 'bad'; it is a number from 0 to 1; name the .* labels=, such as \["
    ):
        Classification(tokenizer()).encode([{"text": "is it", "label": "bad"}])
    with pytest.raises(RecordError, match=r"label is 'odd'; it is a number from 0 to 1, or one of bad, good$"):
        Classification(tokenizer(), ["bad", "good"]).encode([{"text": "is it", "label": "odd"}])


@pytest.mark.parametrize("labels", [2**70, 1, True, None, 2.5, "ab", ["a"], ["a", "a"], ["a", 1], {"a": 1, "b": 0}])
def test_labels_that_name_no_classes_are_refused(labels):
    """A huge number too, whose names would not fit into memory."""
    with pytest.raises(OptionError, match="labels"):
        Classification(tokenizer(), labels)


def test_sets_of_labels_are_refused_since_each_run_would_number_them_otherwise():
    with pytest.raises(OptionError, match=r"labels are .*give a list of the different names"):
        Classification(tokenizer(), {"good", "bad"})


def test_the_number_of_classes_may_be_one_of_numpy():
    assert Classification(tokenizer(), np.int64(3)).names == ["0", "1", "2"]
    assert Classification(tokenizer(), np.array(["a", "b"])).names == ["a", "b"]
