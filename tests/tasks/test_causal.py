"""Causal language models on texts and chats: packs change no loss, gradient or metric; what is cut is counted."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from tests.tasks import templates
from tests.tasks.equality import check_equal, jointly, packed, unpacked
from tests.tasks.templates import chat, tokenizer
from tests.tasks.tiny import llama, words

import nopad
from nopad.errors import LengthError, OptionError, RecordError
from nopad.tasks import CausalLM, Chat


def texts(count=17, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [{"text": words(generator, int(torch.randint(1, 25, (), generator=generator)))} for _ in range(count)]


def chats(count=11, seed=0):
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.randint(1, 8, (count, 4), generator=generator).tolist()
    return [
        {"messages": chat(*(words(generator, size) for size in one[: 2 + 2 * (at % 2)]))}
        for at, one in enumerate(sizes)
    ]


def weighted():
    """Chats of two turns, of which the first is read and not learned."""
    made = [one for one in chats() if len(one["messages"]) == 4]
    for one in made:
        one["messages"][1]["weight"] = 0
    return made


def cases():
    yield "texts", CausalLM(tokenizer()), texts()
    yield "split", CausalLM(tokenizer(), max_length=7, over_long="split"), texts()
    yield "chats", Chat(tokenizer()), chats()
    yield "last", Chat(tokenizer(templates.MARKED), last_only=True), chats()
    yield "weights", Chat(tokenizer()), weighted()


def nll(examples, number, logits):
    """Sum over labelled tokens but the first, and their number."""
    begin = int(examples.sequences.begins[number])
    span = slice(begin, begin + int(examples.sequences.seq_lengths[number]))
    tokens = examples.sequences.tokens
    labels = torch.from_numpy(tokens.get("labels", tokens["input_ids"])[span].astype("int64"))
    each = torch.log_softmax(logits[0], -1)
    known = [at for at in range(1, len(labels)) if labels[at] != -100]
    return -sum((each[at - 1, labels[at]] for at in known), start=logits.sum() * 0), len(known)


@pytest.mark.parametrize("name", ["texts", "split", "chats", "last", "weights"])
def test_packs_change_neither_loss_nor_gradients_nor_metrics(name):
    task, records = next((task, made) for one, task, made in cases() if one == name)
    examples = task.encode(records)
    model = llama(task)
    right = []

    def loss(outputs, number):
        guess = outputs.logits[0].argmax(-1)
        begin = int(examples.sequences.begins[number])
        tokens = examples.sequences.tokens
        labels = tokens.get("labels", tokens["input_ids"])[begin : begin + len(guess)]
        right.append(sum(int(guess[at - 1]) == labels[at] for at in range(1, len(guess)) if labels[at] != -100))
        return nll(examples, number, outputs.logits)

    alone = unpacked(model, examples, loss)
    count = sum(
        nll(examples, at, torch.zeros(1, int(length), 96))[1]
        for at, length in enumerate(examples.sequences.seq_lengths)
    )
    for world_size in (1, 2):
        value, gradients, meter = packed(model, task, examples, world_size=world_size)
        check_equal(alone, (value, gradients))
        assert meter.values()["perplexity"] == pytest.approx(math.exp(alone[0]), rel=1e-12)
        assert meter.values()["accuracy"] == pytest.approx(sum(right) / count, rel=1e-12)


def test_the_loss_of_weighted_chats_is_that_of_the_turns_that_count():
    """The loss over both turns is that over the first and that over the second, each by how much is learned of it."""
    model, both, sums = (
        nopad.packed(llama(Chat(tokenizer()))),
        [one for one in chats() if len(one["messages"]) == 4],
        {},
    )
    for name, silent in (("both", None), ("first", 3), ("second", 1)):
        given = [
            {"messages": [{**one, "train": at != silent} if at % 2 else one for at, one in enumerate(chat["messages"])]}
            for chat in both
        ]
        task = Chat(tokenizer())
        batch = next(iter(task.loader(task.encode(given), 256, rows=1)))
        count = task.objective.count(batch)
        with torch.no_grad():
            sums[name] = (task.objective.step(model, batch)[0] * count, count)
    for side in (0, 1):
        assert abs(sums["both"][side] - sums["first"][side] - sums["second"][side]) < 1e-9
    assert sums["first"][0] != sums["second"][0]


@pytest.mark.parametrize("name", ["split", "chats"])
def test_results_say_how_likely_each_record_is(name):
    task, records = next((task, made) for one, task, made in cases() if one == name)
    examples = task.encode(records)
    model = llama(task)
    outputs = []
    jointly(model, examples, lambda found: outputs.extend(found) or found[0].logits.sum())
    each = [nll(examples, at, one.logits) for at, one in enumerate(outputs)]
    batch = nopad.loading.causal(examples.sequences, nopad.Flat(), np.array([len(examples)]))
    nopad.packed(model)
    with torch.no_grad():
        found = task.results(task.objective.outputs(model, batch), batch)
    for one, (total, count) in zip(found, each, strict=True):
        assert (one["tokens"], one["logprob"]) == (count, pytest.approx(-total.item(), rel=1e-12))
        assert one["mean_logprob"] == (one["logprob"] / count if count else None)
    merged = task.merged(found, examples)
    assert len(merged) == len(records)
    of_first = [one["logprob"] for one, record in zip(found, examples.record, strict=True) if record == 0]
    assert merged[0]["logprob"] == pytest.approx(sum(of_first))
    assert sum(one["tokens"] for one in merged) == sum(count for _, count in each)


def test_texts_have_one_end():
    task = CausalLM(tokenizer())
    made = task.encode([{"text": "is it ?"}, {"text": "no [EOS]"}])
    assert tokenizer().convert_ids_to_tokens(made.sequences.tokens["input_ids"]) == [
        *("[CLS]", "is", "it", "?", "[EOS]"),
        *("[CLS]", "no", "[EOS]"),
    ]
    assert str(made) == "2 records: 2 sequences, 8 tokens"


@pytest.mark.parametrize(
    ("over_long", "lengths", "counts"),
    [("truncate", [5, 4], {"truncated": 1}), ("drop", [5], {"dropped": 1}), ("split", [5, 4, 4, 2], {"split": 1})],
)
def test_what_is_too_long_is_counted(over_long, lengths, counts):
    task = CausalLM(tokenizer(), max_length=5 if over_long != "split" else 4, over_long=over_long)
    records = [{"text": "is it ?"}, {"text": "one two three four five 6 7 8"}]
    if over_long == "split":
        records = [{"text": "is it ?"}, *records[1:]]
        made = task.encode(records)
        assert (made.sequences.seq_lengths.tolist(), made.record.tolist()) == ([4, 1, 4, 4, 2], [0, 0, 1, 1, 1])
        assert made.counts == {"split": 2}
        return
    made = task.encode(records)
    assert made.sequences.seq_lengths.tolist() == [5] + [5] * (over_long == "truncate")
    assert (made.counts, made.records) == (counts, 2)


def test_chats_are_cut_dropped_and_expanded():
    long = {"messages": chat("is it ?", "yes yes yes yes")}
    late = {"messages": chat("one two three four five 6 7 8 9", "yes")}
    task = Chat(tokenizer(), max_length=8, over_long="truncate")
    made = task.encode([long, late])
    assert made.counts == {"truncated": 1, "dropped": 1}
    assert (made.sequences.tokens["labels"] != -100).sum() == 2
    assert task.merged([{"logprob": 0.0, "tokens": 1}], made)[1] is None
    assert str(task.encode([late])) == "1 record: 0 sequences, 0 tokens, 1 dropped"
    with pytest.raises(LengthError, match=r"nothing is left to train on: 1 record: 0 sequences, 0 tokens, 1 dropped"):
        task.loader([late], 8, rows=1)
    with pytest.raises(LengthError, match="record 1 has 14 tokens, and max_length is 12"):
        Chat(tokenizer(), max_length=12).encode([long, late])
    rewriting = Chat(tokenizer(templates.REWRITING), rewriting="expand")
    made = rewriting.encode([{"messages": chat("is it", "yes when no", "why", "no")}, long])
    assert (made.record.tolist(), made.counts) == ([0, 0, 1], {"expanded": 1})
    assert rewriting.merged([{"logprob": -float(n), "tokens": n} for n in (1, 2, 3)], made)[0]["logprob"] == -3.0
    short = Chat(tokenizer(templates.REWRITING), rewriting="expand", max_length=9, over_long="drop")
    made = short.encode([{"messages": chat("is it", "yes when no", "why", "no")}])
    assert (made.record.tolist(), made.counts) == ([0], {"expanded": 1, "truncated": 1})  # a part of it is dropped


def test_bad_input_is_refused():
    task = Chat(tokenizer())
    with pytest.raises(RecordError, match="record 1 has no assistant's turn"):
        task.encode([{"messages": chat("is it", "no")}, {"messages": chat("is it")}])
    with pytest.raises(RecordError, match="record 0 is a str"):
        task.encode(["is it"])
    with pytest.raises(LengthError, match="there is no record"):
        task.encode([])
    with pytest.raises(OptionError, match="rewriting is 'keep'"):
        Chat(tokenizer(), rewriting="keep")
    with pytest.raises(OptionError, match="roles are"):
        Chat(tokenizer(), roles={"bot": "robot"})
    with pytest.raises(OptionError, match="over_long is 'split'; for chat"):
        Chat(tokenizer(), max_length=4, over_long="split")
    with pytest.raises(LengthError, match="record 0 has no token"):
        CausalLM(tokenizer(), empty="error").encode([{"text": ""}])
    with pytest.raises(RecordError, match="record 0 has no 'text'"):
        CausalLM(tokenizer()).encode([{"body": "is it"}])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["marked", "completion", "strings"])
def test_trl_prepares_the_same(kind, tmp_path):
    """TRL's `SFTTrainer` with assistant_only_loss, or with prompts and completions."""
    trl = pytest.importorskip("trl")
    import datasets

    made = tokenizer.__wrapped__(templates.MARKED)
    made._tokenizer.post_processor = _no_specials()
    if kind == "marked":
        records = chats()
    elif kind == "completion":
        records = [{"prompt": one["messages"][:-1], "completion": one["messages"][-1:]} for one in chats()]
    else:
        records = [
            {"prompt": one["text"], "completion": " " + two["text"]}
            for one, two in zip(texts(), texts(seed=1), strict=True)
        ]
    ours = Chat(made).encode(records).sequences
    model = llama(CausalLM(tokenizer())).float()
    model.config.eos_token_id = made.eos_token_id
    arguments = trl.SFTConfig(
        output_dir=str(tmp_path), assistant_only_loss=kind == "marked", max_length=None, report_to=[], use_cpu=True
    )
    trainer = trl.SFTTrainer(model, arguments, train_dataset=datasets.Dataset.from_list(records), processing_class=made)
    theirs = trainer.train_dataset
    assert ours.tokens["input_ids"].tolist() == [token for row in theirs["input_ids"] for token in row]
    labels = [token for row in theirs["labels"] for token in row]
    assert ours.tokens["labels"].tolist() == labels


def _no_specials():
    from tokenizers import processors

    return processors.TemplateProcessing(single="$A", pair="$A $B:1", special_tokens=[])


def test_what_is_above_the_capacity_says_how_the_task_cuts_it():
    told = r"1 of 2 sequences are longer than the capacity of 4, .* record 1, .* CausalLM\(tokenizer, max_length=4, ove"
    with pytest.raises(LengthError, match=told):
        CausalLM(tokenizer()).loader([{"text": "is it"}, {"text": "is it why not the cat"}], 4, rows=1)
    assert CausalLM(tokenizer(), max_length=4, over_long="truncate").loader(
        [{"text": "is it why not the cat"}], 4, rows=1
    )
