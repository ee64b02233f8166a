"""Tags of words: which token has a word's label, how spans become tags, entities, and that packs change nothing."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.tasks.equality import check_equal, packed, unpacked
from tests.tasks.tiny import bert, llama, tokenizer, wordpieces, words

from nopad.errors import LengthError, OptionError, RecordError
from nopad.tasks import OfSequences, OfTokens, TokenClassification
from nopad.tasks.entities import entities

NAMES = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
COUNT = 19


def records(seed=0):
    generator = torch.Generator().manual_seed(seed)
    made = [words(generator, count).split() for count in torch.randint(1, 25, (COUNT,), generator=generator).tolist()]
    return [
        {"words": one, "tags": torch.randint(len(NAMES), (len(one),), generator=generator).tolist()} for one in made
    ]


def labels_of(examples, number):
    begin = int(examples.sequences.begins[number])
    return examples.sequences.tokens["labels"][begin : begin + int(examples.sequences.seq_lengths[number])]


@pytest.mark.parametrize("build", [bert, llama])
@pytest.mark.parametrize("label_all", [False, True])
def test_packs_change_neither_loss_nor_gradients_nor_metrics(build, label_all):
    task = TokenClassification(wordpieces(), NAMES, label_all=label_all)
    examples = task.encode(records())
    if build is llama:
        examples.sequences.tokens.pop("token_type_ids")
    model, seen = build(task, classifier_dropout=0.0), []  # 0.1 in LlamaForTokenClassification otherwise

    def loss(outputs, number):
        wanted = torch.from_numpy(labels_of(examples, number).astype("int64"))
        known = wanted >= 0
        logits = outputs.logits[0][known]
        seen.append((logits.argmax(-1).tolist(), wanted[known].tolist()))
        return -torch.log_softmax(logits, -1).gather(1, wanted[known][:, None]).sum(), int(known.sum())

    alone = unpacked(model, examples, loss)
    right = sum(a == b for one in seen for a, b in zip(*one, strict=True))
    guessed, wanted = (
        {(n, *span) for n, one in enumerate(seen) for span in conll([NAMES[tag] for tag in one[side]])}
        for side in (0, 1)
    )
    for world_size in (1, 2):
        found, gradients, meter = packed(model, task, examples, world_size=world_size)
        check_equal(alone, (found, gradients))
        values = meter.values()
        assert values["accuracy"] == pytest.approx(right / sum(len(one[0]) for one in seen), abs=1e-12)
        assert values["recall"] == pytest.approx(len(guessed & wanted) / len(wanted), abs=1e-12)
        assert values["f1"] == pytest.approx(2 * len(guessed & wanted) / (len(guessed) + len(wanted)), abs=1e-12)


def conll(tags):
    """Entities as conlleval.pl finds them: chunks begin and end between two neighbouring tags."""
    found, begin = [], None
    previous, kind_before = "O", ""
    for at, tag in enumerate([*tags, "O"]):
        sign, kind = (tag[0], tag[2:]) if tag != "O" else ("O", "")
        differs = kind != kind_before
        ends = (previous in "BI" and sign in "BO") or (previous != "O" and differs)
        begins = sign == "B" or (previous == "O" and sign == "I") or (sign != "O" and differs)
        if ends:
            found.append((kind_before, begin, at))
        if begins:
            begin = at
        previous, kind_before = sign, kind
    return found


def test_entities_are_those_of_conlleval():
    generator = np.random.default_rng(0)
    for _ in range(500):
        tags = [NAMES[n] for n in generator.integers(0, 5, generator.integers(0, 12))]
        assert entities(tags) == conll(tags)


def test_entities_of_bioes_and_of_words_without_a_tag():
    assert entities(["S-A", "B-A", "E-A", "I-A", None, "I-A", "E-B"]) == [
        ("A", 0, 1),
        ("A", 1, 3),
        ("A", 3, 4),
        ("A", 5, 6),
        ("B", 6, 7),
    ]


def test_the_first_token_of_a_word_has_its_label():
    task = TokenClassification(wordpieces(), NAMES)
    made = task.encode([{"words": ["Londons", "cat", "Paris"], "tags": ["B-LOC", "O", 3]}])
    assert wordpieces().convert_ids_to_tokens(made.sequences.tokens["input_ids"].tolist()) == (
        ["[CLS]", "London", "##s", "cat", "Paris", "[SEP]"]
    )
    assert made.sequences.tokens["labels"].tolist() == [-100, 3, -100, 0, 3, -100]
    every = TokenClassification(wordpieces(), NAMES, label_all=True)
    made = every.encode([{"words": ["Londons", "cat", "Paris"], "tags": ["B-LOC", "O", 3]}])
    assert made.sequences.tokens["labels"].tolist() == [-100, 3, 4, 0, 3, -100]


def test_tokens_and_labels_are_those_of_transformers():
    """As in run_ner.py: is_split_into_words, and the label where the number of the word changes."""
    task = TokenClassification(wordpieces(), NAMES)
    given = records(1)
    given[0]["words"][0] = "Londons"
    examples = task.encode(given)
    for number, record in enumerate(given):
        wanted = wordpieces()(record["words"], is_split_into_words=True)
        labels, before = [], None
        for word in wanted.word_ids():
            labels.append(-100 if word is None or word == before else record["tags"][word])
            before = word
        begin = int(examples.sequences.begins[number])
        span = slice(begin, begin + int(examples.sequences.seq_lengths[number]))
        assert examples.sequences.tokens["input_ids"][span].tolist() == wanted["input_ids"]
        assert examples.sequences.tokens["labels"][span].tolist() == labels


def test_words_without_a_token_are_counted_and_have_no_tag():
    task = TokenClassification(wordpieces(), NAMES)
    record = {"words": ["", "cat", " ", "\u200b", "dog"], "tags": [1, 0, 2, 0, 3]}
    made = task.encode([record])
    assert made.counts["words_without_a_token"] == 2  # the tokenizer makes [UNK] of a space without width
    assert made.sequences.tokens["labels"].tolist() == [-100, 0, 0, 3, -100]
    size = len(made.sequences.tokens["labels"])
    result = {"tags": ["?", "O", "O", "B-LOC", "?"][:size], "scores": [0.0, 0.1, 0.2, 0.3, 0.4][:size]}
    (found,) = task.merged([result], made)
    assert found["tags"] == [None, "O", None, "O", "B-LOC"]
    assert found["scores"] == [None, 0.1, None, 0.2, 0.3]
    assert found["entities"] == [{"label": "LOC", "text": "dog", "start": 4, "end": 5}]


def test_spans_become_tags_of_whole_words():
    task = TokenClassification(tokenizer(), NAMES, text="text")
    text = "hello London, Paris: the Rome cat"
    spans = [
        {"start": 6, "end": 12, "label": "LOC"},
        {"start": 12, "end": 20, "label": "PER"},
        [24, 30, "LOC"],  # with the spaces around it
    ]
    made = task.encode([{"text": text, "spans": spans}])
    ids = tokenizer().convert_ids_to_tokens(made.sequences.tokens["input_ids"].tolist())
    labels = [NAMES[n] if n >= 0 else "" for n in made.sequences.tokens["labels"].tolist()]
    assert dict(zip(ids, labels, strict=True)) == {
        "[CLS]": "",
        "hello": "O",
        "London": "B-LOC",
        ",": "B-PER",
        "Paris": "I-PER",
        ":": "I-PER",
        "the": "O",
        "Rome": "B-LOC",
        "cat": "O",
        "[SEP]": "",
    }
    (found,) = task.merged([{"tags": [label or "O" for label in labels], "scores": [0.5] * len(ids)}], made)
    assert [text[one["start"] : one["end"]] for one in found["entities"]] == ["London", ", Paris:", "Rome"]
    assert [one["text"] for one in found["entities"]] == ["London", ", Paris:", "Rome"]
    plain = TokenClassification(tokenizer(), ["O", "LOC"], text="text")
    made = plain.encode([{"text": "Rome eats", "spans": [(0, 9, "LOC")]}])
    assert made.sequences.tokens["labels"].tolist() == [-100, 1, 1, -100]


@pytest.mark.parametrize(
    ("spans", "message"),
    [
        ([(0, 3, "LOC")], "a part of the word 'hello'"),
        ([(5, 6, "LOC")], "no word"),
        ([(6, 12, "LOC"), (0, 12, "PER")], "'London' is in"),
        ([(6, 99, "LOC")], "the characters 0 to 12"),
        ([(6, 6, "LOC")], "the characters 0 to 12"),
        ([(6, 12, "ORG")], "has the label 'ORG', and no tag for it among O, B-PER"),
        ([(6, 12, 3)], "its label is a name"),
        ([(6.0, 12, "LOC")], "numbers of characters"),
        ([{"start": 6}], "numbers of characters"),
        (["London"], "expected a dict with start, end and label"),
        ("London", "spans is a str"),
    ],
)
def test_bad_spans_are_refused(spans, message):
    task = TokenClassification(tokenizer(), NAMES, text="text")
    with pytest.raises(RecordError, match=message):
        task.encode([{"text": "hello London", "spans": spans}])


@pytest.mark.parametrize(
    ("names", "wanted"),
    [
        (["O", "I-A"], ["I-A", "I-A", "I-A", "O", "I-A"]),
        (["O", "B-A", "I-A", "E-A", "S-A"], ["B-A", "I-A", "E-A", "O", "S-A"]),
        (["O", "A"], ["A", "A", "A", "O", "A"]),
    ],
)
def test_spans_in_other_schemes(names, wanted):
    task = TokenClassification(tokenizer(), names, text="text")
    made = task.encode([{"text": "one two three the cat", "spans": [(0, 13, "A"), (18, 21, "A")]}])
    assert [names[n] for n in made.sequences.tokens["labels"].tolist()[1:-1]] == wanted


def test_labels_of_spans_that_are_tags():
    """Each word of a span with the label B-A got the tag B-A: several entities, without a word."""
    names = ["O", "B-A", "I-A", "E-A", "S-A", "B-B"]
    task = TokenClassification(tokenizer(), names, text="text")

    def tags(*spans):
        made = task.encode([{"text": "one two three the cat", "spans": list(spans)}])
        return [names[n] for n in made.sequences.tokens["labels"].tolist()[1:-1]]

    assert tags((0, 13, "B-A"), (18, 21, "S-A")) == ["B-A", "I-A", "I-A", "O", "S-A"]
    assert tags((0, 3, "B-B"), (4, 13, "I-A")) == ["B-B", "I-A", "I-A", "O", "O"]
    for label in ("S-A", "E-A", "B-B"):
        with pytest.raises(RecordError, match=f"has 2 words and the label '{label}', the tag of one word; give its"):
            tags((0, 7, label))
    record = {"text": "one two", "spans": [(0, 3, "S-A"), (4, 7, "C")]}
    options = {"text": "text", "spans": "spans"}
    assert TokenClassification.labels_in(record, 0, options) == ["O", "S-A", "I-A", "B-C", "I-C"]


def test_a_scheme_without_tags_for_further_words():
    task = TokenClassification(tokenizer(), ["O", "B-A"], text="text")
    assert task.encode([{"text": "the cat", "spans": [(4, 7, "A")]}]).sequences.tokens["labels"].tolist()[2] == 1
    with pytest.raises(RecordError, match="no tag for it among O, B-A; expected"):
        task.encode([{"text": "the cat", "spans": [(0, 7, "A")]}])


def test_what_is_too_long():
    given = [{"words": ["cat"] * 10, "tags": list(range(5)) * 2}, {"words": ["dog"], "tags": [1]}]
    split = TokenClassification(tokenizer(), NAMES, max_length=6, over_long="split")
    made = split.encode(given)
    assert (made.counts, made.record.tolist()) == ({"split": 1}, [0, 0, 0, 1])
    assert made.sequences.seq_lengths.tolist() == [6, 6, 4, 3]
    labels = made.sequences.tokens["labels"]
    assert labels[labels >= 0].tolist() == [*range(5), *range(5), 1]
    results = [
        {"tags": [NAMES[n] if n >= 0 else "?" for n in labels_of(made, number)], "scores": [0.0] * 6}
        for number in range(4)
    ]
    predictions = split.merged(results, made)
    assert predictions[0]["tags"] == NAMES * 2
    assert split.scores(predictions, given) == {"accuracy": 1.0, "precision": 1.0, "recall": 1.0, "f1": 1.0}
    cut = TokenClassification(tokenizer(), NAMES, max_length=6, over_long="truncate")
    made = cut.encode(given)
    predictions = cut.merged([results[0], results[3]], made)
    assert predictions[0]["tags"] == [*NAMES[:4], *[None] * 6]
    assert cut.scores(predictions, given)["accuracy"] == 5 / 11
    drop = TokenClassification(tokenizer(), NAMES, max_length=6, over_long="drop")
    predictions = drop.merged([results[3]], drop.encode(given))
    assert predictions[0] is None
    assert drop.scores(predictions, given)["accuracy"] == 1 / 11
    with pytest.raises(LengthError, match="record 0 has 12 tokens, and max_length is 6"):
        TokenClassification(tokenizer(), NAMES, max_length=6).encode(given)
    with pytest.raises(LengthError, match="record 0 cannot be cut to 2 tokens"):
        TokenClassification(tokenizer(), NAMES, max_length=2, over_long="split").encode(given)


def test_results_are_per_sequence_of_a_batch():
    task = TokenClassification(tokenizer(), NAMES)
    examples = task.encode(records())
    model = bert(task)
    import nopad

    nopad.packed(model)
    found = [None] * len(examples)
    for batch in task.loader(examples, 64, rows=2, last="fill", rank=0, world_size=1):
        outputs = task.objective.outputs(model, batch)
        for number, result in zip(batch.records["seq_index"].tolist(), task.results(outputs, batch), strict=True):
            found[number] = result
    nopad.unpacked(model)
    predictions = task.merged(found, examples)
    logits = []
    unpacked(model, examples, lambda out, n: (logits.append(out.logits[0].detach()) or out.logits.sum(), 1))
    for one, record, mine in zip(predictions, records(), logits, strict=True):
        assert one["words"] == record["words"]
        assert one["tags"] == [NAMES[n] for n in mine[1:-1].argmax(-1).tolist()]
        assert one["scores"] == pytest.approx(torch.softmax(mine[1:-1], -1).max(-1).values.tolist())


def test_bad_records_are_refused():
    task = TokenClassification(tokenizer(), NAMES)
    for record, message in [
        ({"words": ["cat"], "tags": []}, "record 0 has 1 words and 0 tags"),
        ({"words": [], "tags": []}, "record 0 has no word"),
        ({"words": [" "], "tags": [0]}, "record 0 has no word"),
        ({"words": ["cat", 3], "tags": [0, 0]}, r"words\[1\] is 3"),
        ({"words": "cat", "tags": [0]}, "words is a str"),
        ({"words": np.array("ok"), "tags": [0]}, r"words is an array of shape \[\], expected \[n\]"),
        ({"words": ["ok", "a\ud800"], "tags": [0, 0]}, r"words\[1\] holds a lone surrogate, \\ud800, at character 1"),
        ({"words": ["cat"]}, "record 0 has no 'tags'"),
        ({"words": ["cat"], "tags": [5]}, r"tags\[0\] is 5; it is a number from 0 to 4"),
        ({"words": ["cat"], "tags": [-100]}, r"tags\[0\] is -100"),
        ({"words": ["cat"], "tags": ["PER"]}, r"tags\[0\] is 'PER'"),
        ({"words": ["cat"], "tags": [True]}, r"tags\[0\] is True"),
    ]:
        with pytest.raises(RecordError, match=message):
            task.encode([record])
    with pytest.raises(OptionError, match="no tag is 'O'"):
        TokenClassification(tokenizer(), ["A", "B"], text="text")
    with pytest.raises(OptionError, match="label_all"):
        TokenClassification(tokenizer(), NAMES, label_all="yes")
    assert len(task.encode([{"words": ["cat"]}], labels=False)) == 1
    with pytest.raises(RecordError, match="2 predictions for 1 records"):
        task.scores([None, None], [{"words": ["cat"], "tags": [0]}])
    with pytest.raises(RecordError, match="0 predictions for 1 records"):
        task.scores([], [{"words": ["cat"], "tags": [0]}])


def test_tags_without_entities_have_no_f1():
    task = TokenClassification(tokenizer(), ["NOUN", "VERB"])
    given = [{"words": ["cat", "eats"], "tags": ["NOUN", "VERB"]}]
    examples = task.encode(given)
    result = {"tags": ["NOUN"] * 4, "scores": [1.0] * 4}
    predictions = task.merged([result], examples)
    assert "entities" not in predictions[0]
    assert task.scores(predictions, given) == {"accuracy": 0.5}
    assert set(packed(bert(task), task, examples)[2].values()) == {"accuracy"}


def test_words_in_running_text():
    from nopad.tasks.pieces import aligned, words_in

    text = "cafe\u0301 can't 東京タワー हिन्दी 😀!"
    assert [text[a:b] for a, b in words_in(text)] == (
        ["cafe\u0301", "can", "'", "t", *"東京タワ", "ー", "हिन्दी", "😀", "!"]
    )
    # A token of two words is the first one's, and both have it; a token of spaces is nobody's.
    word_of, first_of = aligned([(0, 2), (2, 3), (4, 6)], np.array([[0, 3], [3, 4], [3, 5], [5, 6]]))
    assert (word_of.tolist(), first_of.tolist()) == ([0, -1, 2, 2], [0, 0, 2])


def test_unknown_kinds_of_objectives_are_refused():
    with pytest.raises(OptionError, match="kind is 'class'; it is 'classes', 'several' or 'numbers'"):
        OfSequences("class")
    with pytest.raises(OptionError, match="per is 'row'; it is 'token' or 'sequence'"):
        OfTokens(per="row")
