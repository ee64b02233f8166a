"""Answers to questions: windows and positions, best spans over windows, and that packs change nothing."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from tests.tasks.equality import check_equal, packed, unpacked
from tests.tasks.tiny import WORDS, bert, llama, tokenizer, words
from torchmetrics.functional.text import squad as torchmetrics_squad

import nopad
from nopad.errors import BatchError, FormatError, LengthError, OptionError, RecordError
from nopad.tasks import Answers, read_squad
from nopad.tasks.squad import best_thresholds, exact_and_f1, squad_scores

COUNT = 17


def record(question, context, *answers, **more):
    texts, starts = [text for text, _ in answers], [at for _, at in answers]
    return {"question": question, "context": context, "answers": {"text": texts, "answer_start": starts}, **more}


def records(seed=0, longest=60, nothing=4):
    """Random questions; every `nothing`-th has no answer."""
    generator = torch.Generator().manual_seed(seed)

    def below(n):
        return int(torch.randint(n, (), generator=generator))

    made = []
    for number in range(COUNT):
        context = words(generator, 1 + below(longest))
        parts = context.split(" ")
        first = below(len(parts))
        text = " ".join(parts[first : first + 1 + below(4)])
        start = len(" ".join(parts[:first])) + (first > 0)
        given = [] if number % nothing == 0 else [(text, start)]
        made.append(record(words(generator, 1 + below(6)), context, *given, id=str(number)))
    return made


def judged(examples, positions=None):
    """Mean of both cross-entropies of each window, from logits that no pack has seen."""
    starts, ends = (examples.sequences.values[f"{side}_positions"] for side in ("start", "end"))

    def loss(outputs, number):
        start, end = int(starts[number]), int(ends[number])
        if start < 0:
            return outputs.start_logits.sum() * 0, 0
        one = -torch.log_softmax(outputs.start_logits[0], -1)[start]
        return (one - torch.log_softmax(outputs.end_logits[0], -1)[end]) / 2, 1

    return loss


@pytest.mark.parametrize("build", [bert, llama])
@pytest.mark.parametrize("absent", ["cls", "ignore"])
def test_packs_change_neither_loss_nor_gradients_nor_metrics(build, absent):
    task = Answers(tokenizer(), max_length=32, stride=8, absent=absent)
    examples = task.encode(records())
    assert examples.counts["split"] > 3
    if build is llama:
        examples.sequences.tokens.pop("token_type_ids")
    model, logits = build(task), []
    loss = judged(examples)

    def judge(outputs, number):
        logits.append((outputs.start_logits[0].tolist(), outputs.end_logits[0].tolist()))
        return loss(outputs, number)

    alone = unpacked(model, examples, judge)
    exact, counted = 0, 0
    for (start, end), a, b in zip(
        logits, *(examples.sequences.values[f"{side}_positions"].tolist() for side in ("start", "end")), strict=True
    ):
        best = max((start[i] + end[j], -i, -j) for i in range(len(start)) for j in range(i, min(i + 30, len(start))))
        exact += a >= 0 and (-best[1], -best[2]) == (a, b)
        counted += a >= 0
    for world_size in (1, 2):
        found, gradients, meter = packed(model, task, examples, world_size=world_size)
        check_equal(alone, (found, gradients))
        assert meter.values()["exact"] == pytest.approx(exact / counted, abs=1e-12)


@pytest.mark.parametrize(("max_length", "stride"), [(20, 4), (32, 16), (24, 0), (384, 128)])
def test_windows_and_positions_are_those_of_run_qa(max_length, stride):
    task = Answers(tokenizer(), max_length=max_length, stride=stride)
    given = records(1)
    examples = task.encode(given)
    wanted = tokenizer()(
        [one["question"] for one in given],
        [one["context"] for one in given],
        truncation="only_second",
        max_length=max_length,
        stride=stride,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
    )
    assert examples.sequences.tokens["input_ids"].tolist() == [n for one in wanted["input_ids"] for n in one]
    assert examples.sequences.tokens["token_type_ids"].tolist() == [n for one in wanted["token_type_ids"] for n in one]
    assert examples.record.tolist() == wanted["overflow_to_sample_mapping"]
    for number, of in enumerate(wanted["overflow_to_sample_mapping"]):
        start, end = run_qa_positions(
            given[of]["answers"], wanted["offset_mapping"][number], wanted.sequence_ids(number)
        )
        assert examples.sequences.values["start_positions"][number] == start
        assert examples.sequences.values["end_positions"][number] == end


def run_qa_positions(answers, offsets, sequence_ids):
    """The loop of transformers' examples/pytorch/question-answering/run_qa.py.

    Theirs goes on beyond the context, whose next token has the offsets (0, 0): an answer that is the last token of a
    window gets the window's last slot as its start. Here it stops at the context's end.
    """
    if not answers["answer_start"]:
        return 0, 0
    start_char = answers["answer_start"][0]
    end_char = start_char + len(answers["text"][0])
    first = sequence_ids.index(1)
    last = len(sequence_ids) - 1 - sequence_ids[::-1].index(1)
    if not (offsets[first][0] <= start_char and offsets[last][1] >= end_char):
        return 0, 0
    end_of_context = last + 1
    while first < end_of_context and offsets[first][0] <= start_char:
        first += 1
    while offsets[last][1] >= end_char:
        last -= 1
    return first - 1, last + 1


def run(task, given, model, capacity=64):
    """Predictions of a packed model, per record."""
    examples = task.encode(given, labels=False)
    found = [None] * len(examples)
    nopad.packed(model.eval())
    for batch in task.loader(examples, capacity, rows=2, last="fill", rank=0, world_size=1):
        if batch.weight:
            with torch.no_grad():
                outputs = task.objective.outputs(model, batch)
            for number, result in zip(batch.records["seq_index"].tolist(), task.results(outputs, batch), strict=True):
                found[number] = result
    nopad.unpacked(model)
    return task.merged(found, examples)


@pytest.mark.parametrize("threshold", [None, 0.0])
def test_answers_are_the_best_spans_of_single_windows(threshold):
    task = Answers(tokenizer(), max_length=32, stride=8, threshold=threshold, max_answer=5)
    model, given = bert(task), records(2)
    predictions, empty = run(task, given, model), 0
    if threshold is not None:  # so that half of the questions have an answer
        threshold = task.threshold = float(np.median([one["no_answer"] for one in predictions]))
        predictions = run(task, given, model)
    for one, prediction in zip(given, predictions, strict=True):
        windows = tokenizer()(
            one["question"], one["context"], truncation="only_second", max_length=32, stride=8,
            return_overflowing_tokens=True, return_offsets_mapping=True, padding=True, return_tensors="pt",
        )  # fmt: skip
        best, null = (-np.inf,), np.inf
        for n, offsets in enumerate(windows["offset_mapping"].tolist()):
            length = int(windows["attention_mask"][n].sum())
            inputs = {name: windows[name][n : n + 1, :length] for name in ("input_ids", "token_type_ids")}
            with torch.no_grad():
                out = model(**inputs)
            start, end = out.start_logits[0].tolist(), out.end_logits[0].tolist()
            null = min(null, start[0] + end[0])
            context = [k for k, side in enumerate(windows.sequence_ids(n)) if side == 1]
            for i in context:
                for j in [j for j in context if i <= j < i + 5]:
                    best = max(best, (start[i] + end[j], -offsets[i][0], offsets[j][1]))
        begin, stop = -best[1], best[2]
        if threshold is not None:
            assert prediction["no_answer"] == pytest.approx(null - best[0])
        if threshold is not None and null - best[0] > threshold:
            empty += 1
            assert (prediction["text"], prediction["start"]) == ("", None)
        else:
            assert (prediction["text"], prediction["start"]) == (one["context"][begin:stop], begin)
        assert 0 < prediction["score"] <= 1
    if threshold is not None:
        assert 0 < empty < COUNT
    scores = task.scores(predictions, given)
    names = {f"{kind}{name}" for kind in ("", "has_answer_", "no_answer_") for name in ("exact", "f1")}
    best = {f"best_{name}{what}" for name in ("exact", "f1") for what in ("", "_threshold")}
    assert set(scores) == names | (best if threshold is not None else set())
    if threshold is None:
        return
    tried = {}  # what each threshold really gives
    for limit in [-1e9, *sorted(one["no_answer"] for one in predictions)]:
        task.threshold = limit
        tried[limit] = task.scores(run(task, given, model), given)
    for name in ("exact", "f1"):
        assert scores[f"best_{name}"] == pytest.approx(max(one[name] for one in tried.values()), abs=1e-12)
        task.threshold = scores[f"best_{name}_threshold"]
        assert task.scores(run(task, given, model), given)[name] == pytest.approx(scores[f"best_{name}"], abs=1e-12)


def official(texts, scores, no_answer, has_answer):
    """SQuAD 2.0's search for the best threshold, as its script has it (find_best_thresh), by question."""
    current = best = sum(1 for one in has_answer if not one)
    found = 0.0
    for at in sorted(range(len(texts)), key=lambda at: no_answer[at]):
        current += scores[at] if has_answer[at] else -1 if texts[at] else 0
        if current > best:
            best, found = current, no_answer[at]
    return best / len(texts), found


def test_best_thresholds_are_those_of_squads_script():
    generator = np.random.default_rng(0)
    for count in (1, 7, 60):
        texts = [" ".join(generator.choice(["red", "dog", "cat"], 2)) for _ in range(count)]
        right = [[" ".join(generator.choice(["red", "dog", "cat"], 2))] if n % 3 else [] for n in range(count)]
        limits = generator.normal(size=count).tolist()
        found = best_thresholds(list(zip(texts, limits, strict=True)), right)
        each = [exact_and_f1(text, one) for text, one in zip(texts, right, strict=True)]
        for side, name in enumerate(("exact", "f1")):
            best, limit = official(texts, [one[side] for one in each], limits, right)
            assert found[f"best_{name}"] == pytest.approx(best, abs=1e-12)
            if any(limit == one for one in limits):  # else nothing is answered
                assert found[f"best_{name}_threshold"] == limit


def test_best_thresholds_are_of_scores_that_a_threshold_gives():
    """Questions of one margin are answered together; without any answer the threshold is below all of them."""
    tied = [("red", 1.0), ("dog", 1.0), ("cat", 2.0)]
    found = best_thresholds(tied, [["red"], [], ["cat"]])
    assert (found["best_exact"], found["best_exact_threshold"]) == (
        2 / 3,
        2.0,
    )  # the script says 1.0, which gives 1 / 3
    none = best_thresholds([("red", 1.0), ("dog", 2.0)], [[], []])
    assert none["best_f1"] == 1.0
    assert 0.99 < none["best_f1_threshold"] < 1.0
    odd = best_thresholds([None, ("", None), ("", None), ("the", 0.0)], [[], [], ["cat"], []])
    assert (odd["best_exact"], odd["best_f1"]) == (0.5, 0.5)  # no prediction is wrong, "the" is as good as nothing
    assert best_thresholds([None], [["cat"]])["best_exact"] == 0.0


def test_spans_never_leave_their_sequence():
    """Two questions side by side: the best start is in the first, the best end in the second."""
    task = Answers(tokenizer(), n_best=50)
    given = [record("who ?", "red blue green"), record("what ?", "cat dog")]
    examples = task.encode(given, labels=False)
    batch = next(iter(task.loader(examples, 32, rows=1, rank=0, world_size=1)))
    assert batch.layout.sequences == 2
    lengths = batch.seq_lengths.tolist()
    logits = {name: torch.zeros(1, 32) for name in ("start", "end")}

    class Head(torch.nn.Module):
        """Scores slots: every word of a sequence by itself would like to begin, and the next one's end."""

        def forward(self, states):
            return torch.stack([logits["start"][0], logits["end"][0]], -1)[None].to(states)

    model = bert(task)
    model.qa_outputs = Head()
    # Slots of the first and of the second sequence in the row.
    logits["start"][0, lengths[0] - 2] = 9.0
    logits["end"][0, lengths[0] + lengths[1] - 2] = 9.0
    nopad.packed(model, prove="never")
    outputs = task.objective.outputs(model, batch)
    results = task.results(outputs, batch)
    order = batch.records["seq_index"].tolist()
    for number, result in zip(order, results, strict=True):
        words_of = len(given[number]["context"].split())
        assert all(0 <= first <= last < words_of for first, last, _ in result["spans"])
        assert len(result["spans"]) == words_of * (words_of + 1) // 2
    found = task.merged([results[order.index(n)] for n in range(2)], examples)
    texts = [one["text"] for one in found]
    # The first in the row ends where it begins; the second ends at its end.
    assert texts[order[0]] == given[order[0]]["context"].split()[-1]
    assert texts[order[1]].endswith(given[order[1]]["context"].split()[-1])


def test_an_answer_at_the_very_end_and_the_very_beginning():
    task = Answers(tokenizer(), max_length=10, stride=2)
    context = "one two three four five red blue green cat"
    made = task.encode([record("is it ?", context, ("cat", 39)), record("is it ?", context, ("one two", 0))])
    rows = np.split(made.sequences.tokens["input_ids"], made.sequences.begins[1:])
    for number, text in ((0, "cat"), (1, "one two")):
        mine = [n for n, of in enumerate(made.record.tolist()) if of == number]
        spans = [(made.sequences.values["start_positions"][n], made.sequences.values["end_positions"][n]) for n in mine]
        found = [tokenizer().decode(rows[n][a : b + 1]) for n, (a, b) in zip(mine, spans, strict=True) if a > 0]
        assert found == [text]


def test_windows_that_only_have_a_part_of_the_answer_have_none():
    task = Answers(tokenizer(), max_length=8, stride=1)
    made = task.encode([record("why", "one two three four five red", ("four five", 14))])
    # 4 words a window, one of them shared: "one two three four", "four five red".
    assert made.sequences.values["start_positions"].tolist() == [0, 3]
    assert made.sequences.values["end_positions"].tolist() == [0, 4]
    assert made.counts == {"split": 1, "windows_without_the_answer": 1}
    ignoring = Answers(tokenizer(), max_length=8, stride=1, absent="ignore")
    made = ignoring.encode([record("why", "one two three four five red", ("four five", 14))])
    assert made.sequences.values["start_positions"].tolist() == [-100, 3]
    assert ignoring.objective.count(next(iter(ignoring.loader(made, 16, rows=1)))) == 1


def test_windows_that_share_a_span_count_it_once():
    task = Answers(tokenizer(), max_length=8, stride=2, threshold=0.0)
    made = task.encode([record("why", "one two three four five red")], labels=False)
    first = {"spans": [[2, 3, 1.0], [0, 0, 0.5]], "null": 0.0}  # "three four"
    second = {"spans": [[0, 1, 2.0]], "null": 3.0}
    (found,) = task.merged([first, second], made)
    assert (found["text"], found["start"], found["no_answer"]) == ("three four", 8, -2.0)
    assert found["score"] == pytest.approx(np.exp(2) / (np.exp(2) + np.exp(0.5) + 1))


def test_other_policies_for_long_contexts():
    given = [record("why", "one two three four five red", ("red", 24)), record("why", "cat", ("cat", 0))]
    cut = Answers(tokenizer(), max_length=8, stride=1, over_long="truncate")
    made = cut.encode(given)
    assert (made.counts, made.record.tolist()) == ({"truncated": 1, "windows_without_the_answer": 1}, [0, 1])
    drop = Answers(tokenizer(), max_length=8, over_long="drop")
    made = drop.encode(given)
    assert (made.counts, made.record.tolist()) == ({"dropped": 1}, [1])
    predictions = drop.merged([{"spans": [[0, 0, 1.0]], "null": 0.0}], made)
    assert (predictions[0], predictions[1]["text"]) == (None, "cat")
    assert drop.scores(predictions, given) == {"exact": 0.5, "f1": 0.5}
    with pytest.raises(LengthError, match="record 0 has 10 tokens, and max_length is 8"):
        Answers(tokenizer(), max_length=8, over_long="error").encode(given)
    whole = Answers(tokenizer(), max_length=None).encode(given)
    assert whole.sequences.seq_lengths.tolist() == [10, 5]


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (record("why", "the cat", ("cat", 5)), "record 1: answers has 'cat' at characters 5 to 8"),
        (record("why", "the cat eats", ("cat", 5)), "where the context has 'at '; it is at 4"),
        (record("why", "the cat eats", ("dog", 4)), "where the context has 'cat'; it is nowhere"),
        (record("why", "the cat", ("cat", -3)), "characters -3 to 0"),
        (record("why", "the cat", ("", 3)), "which is empty"),
        (record("why", "the cat", ("cat", 4), ("dog", 4)), "'dog' at character 4"),
        (record("why", "the cat", ("cat", 4.0)), "the number of a character"),
        (record("why", ""), "context is empty"),
        (record("why", " \n "), "context is empty"),
        (record("", "cat"), "question is empty"),
        ({"question": "why", "context": "cat"}, "answers is None"),
        ({"question": "why", "context": "cat", "answers": {"text": ["cat"], "answer_start": []}}, "of one length"),
        ({"question": "why", "context": "cat", "answers": "cat"}, "of one length"),
        ({"question": "why", "context": "cat", "answers": {"text": "ca", "answer_start": [0, 1]}}, "of one length"),
        ({"question": "why", "context": "cat", "answers": {"text": ["c"], "answer_start": np.array(0)}}, "of one len"),
        ({"question": 3, "context": "cat"}, "question is a int"),
        (record("why", "a cat\udc00"), r"context holds a lone surrogate, \\udc00, at character 5"),
    ],
)
def test_bad_records_are_refused(bad, message):
    task = Answers(tokenizer())
    with pytest.raises(RecordError, match=message):
        task.encode([record("why", "the cat", ("cat", 4)), bad])


def test_a_question_is_never_cut():
    with pytest.raises(LengthError, match=r"record 0 cannot be cut to 10 tokens .* 9 of them .* leave 1 for the rest"):
        Answers(tokenizer(), max_length=10, stride=2).encode([record("is it ? why not yes", "one two", ("one", 0))])
    made = Answers(tokenizer(), max_length=10, stride=2).encode([record("is it ? why not yes", "one", ("one", 0))])
    assert made.sequences.seq_lengths.tolist() == [10]


def test_bad_options_are_refused():
    for options, message in [
        ({"stride": 384}, "stride is 384"),
        ({"max_length": 100, "stride": 128}, "stride is 128"),
        ({"stride": -1}, "stride must be"),
        ({"absent": "first"}, "absent is 'first'"),
        ({"threshold": float("nan")}, "threshold is nan"),
        ({"threshold": True}, "threshold is True"),
        ({"max_answer": 0}, "max_answer must be"),
        ({"over_long": "cut"}, "over_long is 'cut'"),
        ({"max_length": None, "over_long": "split"}, "without max_length"),
    ]:
        with pytest.raises(OptionError, match=message):
            Answers(tokenizer(), **options)


@pytest.mark.parametrize(("max_length", "stride"), [(384, 128), (512, 128), (100, 33), (None, 0)])
def test_the_usual_stride(max_length, stride):
    assert Answers(tokenizer(), max_length=max_length, threshold=np.float32(0.5)).stride == stride


def test_logits_that_are_nan_give_no_answer():
    task = Answers(tokenizer())
    batch = next(iter(task.loader(task.encode([record("why", "cat", ("cat", 0))]), 8, rows=1)))
    nan = torch.full((1, 5), torch.nan)
    with pytest.raises(BatchError, match="NaN"):
        task.results({"start_logits": nan, "end_logits": nan}, batch)
    with pytest.raises(BatchError, match="has no 'context'"):
        task.results({}, nopad.PackedBatch.from_sequences([[1, 2]]))


def test_spaces_around_an_answer_are_no_part_of_it():
    task = Answers(tokenizer())
    made = task.encode([record("why", "the  cat  eats", ("  cat ", 3))])
    at = int(made.sequences.values["start_positions"][0])
    assert tokenizer().decode(made.sequences.tokens["input_ids"][at]) == "cat"
    assert at == made.sequences.values["end_positions"][0]


def test_answers_as_lists_of_dicts_and_arrays():
    task = Answers(tokenizer())
    one = {"question": "why", "context": "the cat", "answers": [{"text": "cat", "answer_start": 4}]}
    two = {**one, "answers": {"text": np.array(["cat"]), "answer_start": np.array([4])}}
    made = task.encode([one, two])
    assert made.sequences.values["start_positions"].tolist() == [4, 4]


NESTED = {
    "version": "v2.0",
    "data": [
        {
            "title": "cats",
            "paragraphs": [
                {
                    "context": "the cat eats",
                    "qas": [
                        {"id": "a", "question": "who eats?", "answers": [{"text": "cat", "answer_start": 4}]},
                        {"id": "b", "question": "why?", "answers": [], "is_impossible": True, "plausible_answers": []},
                        {"id": "a", "question": "who?"},
                    ],
                }
            ],
        }
    ],
}


def test_files_of_squad(tmp_path):
    path = tmp_path / "dev.json"
    path.write_text(json.dumps(NESTED))
    found = read_squad(path)
    assert found == read_squad(NESTED)
    assert [one["id"] for one in found] == ["a", "b", "a"]
    assert [one.get("answers") for one in found] == [
        {"text": ["cat"], "answer_start": [4]},
        {"text": [], "answer_start": []},
        None,
    ]
    task = Answers(tokenizer())
    assert task.encode(found[:2]).sequences.values["start_positions"].tolist()[1] == 0
    with pytest.raises(RecordError, match="record 2: answers is None"):
        task.encode(found)
    assert len(task.encode(found, labels=False)) == 3


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"rows": []}, "the file has no list 'data'"),
        ([], "no file of SQuAD, but a list"),
        ({"data": [{"title": "a"}]}, r"data\[0\] has no list 'paragraphs'"),
        ({"data": [{"paragraphs": [{"qas": [{"question": "why"}]}]}]}, r"data\[0\].paragraphs\[0\].qas\[0\] lacks"),
        (
            {"data": [{"paragraphs": [{"context": "a", "qas": [{"question": "b", "answers": ["a"]}]}]}]},
            "each has text and answer_start",
        ),
        (
            {
                "data": [
                    {
                        "paragraphs": [
                            {
                                "context": "a",
                                "qas": [{"question": "b", "is_impossible": True, "answers": [{"text": "a"}]}],
                            }
                        ]
                    }
                ]
            },
            "is impossible and has answers",
        ),
    ],
)
def test_files_that_are_none_of_squad(content, message):
    with pytest.raises(FormatError, match=message):
        read_squad(content)


def test_unreadable_files(tmp_path):
    with pytest.raises(nopad.errors.SourceError, match="cannot be read"):
        read_squad(tmp_path / "no.json")
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(FormatError, match="is no JSON"):
        read_squad(tmp_path / "bad.json")


def test_scores_are_those_of_torchmetrics():
    generator = np.random.default_rng(0)
    pool = [*WORDS, "The", "a", "an", "cat.", "CAT,", "b-c", "bc"]
    predictions, targets, texts, answers = [], [], [], []
    for number in range(200):
        some = [" ".join(generator.choice(pool, generator.integers(2, 6))) for _ in range(3)]
        mine = some[0] if number % 3 else " ".join([*some[0].split()[1:], "dog"])
        texts.append(mine)
        answers.append([one + " x" for one in some[1:]] + [some[0] + " x"] if number % 2 else [some[0] + "  the"])
        predictions.append({"prediction_text": mine, "id": str(number)})
        targets.append({"answers": {"answer_start": [0] * len(answers[-1]), "text": answers[-1]}, "id": str(number)})
    wanted = torchmetrics_squad(predictions, targets)
    found = squad_scores(texts, answers)
    assert found["exact"] * 100 == pytest.approx(wanted["exact_match"].item(), abs=1e-3)
    assert found["f1"] * 100 == pytest.approx(wanted["f1"].item(), abs=1e-3)
    assert 0.1 < found["exact"] < 0.9


def test_scores_of_questions_without_an_answer():
    texts, answers = ["", "the cat", "", None, "cat dog"], [[], [], ["cat"], [], ["cat", "dog mouse"]]
    found = squad_scores(texts, answers)
    assert found == pytest.approx(
        {
            "exact": 1 / 5,
            "f1": (1 + 2 / 3) / 5,
            "has_answer_exact": 0,
            "has_answer_f1": 1 / 3,
            "no_answer_exact": 1 / 3,
            "no_answer_f1": 1 / 3,
        }
    )
    assert squad_scores(["A"], [["the"]]) == {"exact": 1.0, "f1": 1.0}


def test_scores_of_no_questions_are_nan():
    for found in (squad_scores([], []), best_thresholds([], [])):
        scores = {name: value for name, value in found.items() if "threshold" not in name}
        assert len(scores) == 2
        assert all(np.isnan(value) for value in scores.values())
    assert best_thresholds([], [])["best_f1_threshold"] == 0


def test_metrics_predict_answers_as_long_as_the_task_does():
    """They allowed 30 tokens whatever `max_answer` was."""
    meter = Answers(tokenizer(), max_answer=2).objective.meter()
    start, end = torch.tensor([[0.0, 9.0, 0.0, 0.0]]), torch.tensor([[0.0, 5.0, 0.0, 9.0]])
    positions = {"start_positions": torch.tensor([1]), "end_positions": torch.tensor([1])}
    meter.add({"start_logits": start, "end_logits": end}, positions)
    meter.reduce()
    assert meter.values() == {"exact": 1.0, "f1": 1.0}  # without the limit, the answer 1 to 3 is better
