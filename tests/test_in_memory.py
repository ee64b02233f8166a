"""Data in memory, packed in one call: every kind that people have, compared with what they gave."""

from __future__ import annotations

import copy
import datetime
import gc
import os
import pickle
import warnings

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from tests.tasks import templates
from tests.tasks.templates import chat
from tests.tasks.tiny import tokenizer

import nopad
from nopad.errors import OptionError, RecordError, SourceError

RNG = np.random.default_rng(0)
ROWS = [
    {"input_ids": RNG.integers(3, 99, n).tolist(), "label": int(i % 3), "weight": i / 4}
    for i, n in enumerate(RNG.integers(1, 20, 200))
]


HELD = []
HELD.append(HELD)


def sequences_of(dataset, *names):
    """Every sequence by its record number: its ids, and its values of these columns, as the packs hold them."""
    found = {}
    for row in dataset:
        for at, number in enumerate(row.seq_index.tolist()):
            begin, end = row.cu_seqlens[at : at + 2]
            values = [row[name][begin:end].tolist() if name == "labels" else row[name][at] for name in names]
            found.setdefault(number, []).append((row.input_ids[begin:end].tolist(), *values))
    return found


def as_dataset(rows):
    import datasets

    return datasets.Dataset.from_list(rows)


def as_stream(rows):
    return as_dataset(rows).to_iterable_dataset()


def as_pandas(rows):
    import pandas as pd

    return pd.DataFrame(rows)


def as_arrow(rows):
    import pyarrow as pa

    return pa.Table.from_pylist(rows)


@pytest.mark.parametrize("form", [list, iter, as_dataset, as_stream, as_pandas, as_arrow, nopad.open_source])
def test_rows_with_ids(form):
    dataset = nopad.pack_dataset(form(ROWS), 32)
    found = sequences_of(dataset, "label", "weight")
    assert found == {i: [(row["input_ids"], row["label"], row["weight"])] for i, row in enumerate(ROWS)}
    assert max(row.input_ids.size for row in dataset) <= dataset.capacity == 32
    assert dataset.manifest.packs <= nopad.pack([len(row["input_ids"]) for row in ROWS], 32).indptr.size
    assert nopad.verify(dataset.path) == []


@pytest.mark.parametrize("library", ["pandas", "polars", "pyarrow", "chunked"])
def test_one_column_of_a_table(library):
    ids = [row["input_ids"] for row in ROWS]
    if library in ("pandas", "polars"):
        column = pytest.importorskip(library).Series(ids)
    else:
        import pyarrow as pa

        column = pa.array(ids) if library == "pyarrow" else pa.table({"ids": ids})["ids"]
    assert sequences_of(nopad.pack_dataset(column, 40)) == {i: [(one,)] for i, one in enumerate(ids)}


def test_named_inputs_are_data_in_memory():
    import pyarrow as pa

    words = nopad.load_tokenizer(tokenizer())
    texts = ["yes", "why not"]
    dataset = nopad.pack_dataset({"a": texts, "b": pa.array(texts)}, 16, tokenizer=words)
    assert [(part["name"], part["records"]) for part in dataset.manifest.sources] == [("a", 2), ("b", 2)]
    ids = nopad.pack_dataset({"a": as_pandas(ROWS), "b": nopad.open_source(ROWS)}, 32)
    found = sequences_of(ids, "label")
    assert [found[n] for n in range(len(ROWS))] == [[(row["input_ids"], row["label"])] for row in ROWS]
    assert nopad.verify(ids.path) == []


@pytest.mark.parametrize(
    ("note", "said"),
    [
        ([1, "a"], "cannot be read as a dataset .*Could not convert 'a'.*note"),
        ([1, 2**70], "cannot be read as a dataset .*too large"),
        ([1, HELD], "a value of the column 'note' is nested too deeply"),
    ],
    ids=["mixed", "large", "holds itself"],
)
def test_a_table_whose_values_arrow_cannot_hold(note, said):
    import pandas as pd

    with pytest.raises(nopad.errors.SourceError, match=said):
        nopad.pack_dataset(pd.DataFrame({"input_ids": [[1], [2]], "note": note}), 8)


def test_lists_of_ids_and_options_of_packing(tmp_path):
    ids = [row["input_ids"] for row in ROWS]
    dataset = nopad.pack_dataset(ids, 40, depth=2, order="source", seed=3, output=tmp_path / "out")
    assert sequences_of(dataset) == {i: [(one,)] for i, one in enumerate(ids)}
    assert max(row.seq_lengths.size for row in dataset) == 2
    again = nopad.pack_dataset(ids, 40, depth=2, order="source", seed=3, output=tmp_path / "out")  # it is finished
    assert again.path == dataset.path == tmp_path / "out"
    path = dataset.path
    del dataset, again
    gc.collect()
    assert (path / "nopad.json").exists()


@pytest.mark.parametrize("form", [list, as_dataset])
def test_texts_carry_their_labels(form):
    words = nopad.load_tokenizer(tokenizer())
    records = [{"text": text, "label": n, "url": "x"} for n, text in enumerate(["yes", "the cat sleeps", "why not"])]
    dataset = nopad.pack_dataset(form(records), 8, tokenizer=tokenizer())
    expected = {
        n: [([*words.prefix, *ids, *words.suffix], n)]
        for n, ids in enumerate(words.encode([record["text"] for record in records]))
    }
    assert sequences_of(dataset, "label") == expected
    assert "columns left out: url" in repr(dataset)


def test_a_list_of_texts_whose_empty_one_is_told():
    with pytest.warns(UserWarning, match=r"^1 of 3 records have no token and are left out; choose empty='error'"):
        dataset = nopad.pack_dataset(["yes", "", "why not"], 8, tokenizer=tokenizer(), special_tokens=False)
    assert sorted(sequences_of(dataset)) == [0, 2]
    assert "of 3 records 1 skipped as empty" in repr(dataset)


CHATS = [
    {"messages": chat("is it red ?", "no , blue"), "source": "a"},
    {"messages": chat("one two three four five 6 7 8 9", "yes"), "source": "b"},
    {"messages": chat("why", "why not", "is it", "yes"), "source": "c"},
]


class TestChats:
    @pytest.mark.parametrize("form", [list, as_dataset, as_stream, iter])
    def test_what_the_assistant_says_is_learned(self, form):
        tok = templates.tokenizer(templates.PLAIN)
        dataset = nopad.pack_dataset(form(CHATS), 24, tokenizer=tok)
        found = sequences_of(dataset, "labels")
        for number, record in enumerate(CHATS):
            [(ids, labels)] = found[number]
            assert ids == tok.apply_chat_template(record["messages"], return_dict=False)
            learned = [label for label in labels if label != -100]
            answers = [one["content"] + " [EOS]" for one in record["messages"] if one["role"] == "assistant"]
            assert tok.decode(learned) == " ".join(answers)
        assert "columns left out: source" in repr(dataset)

    @pytest.mark.parametrize("form", [list, iter, as_dataset])
    def test_the_template_sees_what_was_given(self, form):
        """What JSON lacks was turned into its `repr` before the template saw it."""
        seen = "'datetime' not in message.at | string"  # as is the `repr` of a date
        beside = {"at": datetime.date(2020, 1, 2)}
        if form is not as_dataset:
            seen += " and message.pair | string == '(3, 4)' and 5 in message.names"
            beside |= {"pair": (3, 4), "names": {5: "a"}}
        turn = "{% if " + seen + " %}{{ ' one' }}{% endif %}{{ ' [EOS]' }}"
        tok = templates.tokenizer(templates.PLAIN.replace(" + ' [EOS]' }}", " }}" + turn))
        records = [{"messages": [one | beside for one in chat("is it", "no")]}] * 3
        dataset = nopad.pack_dataset(form(records), 24, tokenizer=tok)
        expected = tok.apply_chat_template(records[0]["messages"], return_dict=False)
        assert tok.decode(expected).count(" one") == 2
        assert sequences_of(dataset) == {n: [(expected,)] for n in range(3)}

    @pytest.mark.parametrize("form", [list, iter])
    def test_functions_as_tools(self, form):
        """As transformers takes them; each such record was refused."""

        def weather(city: str):
            """Tell the weather.

            Args:
                city: the city
            """

        tok = templates.tokenizer(templates.TOOLS)
        record = {"messages": chat("is it", "no"), "tools": [weather]}
        dataset = nopad.pack_dataset(form([record]), 24, tokenizer=tok)
        expected = tok.apply_chat_template(record["messages"], tools=[weather], return_dict=False)
        assert sequences_of(dataset) == {0: [(expected,)]}

    def test_long_ones(self):
        tok = templates.tokenizer(templates.PLAIN)
        told = (
            r'^the dataset, record 1: 14 tokens, capacity is 12; choose over_long="truncate" or "drop", or a capacity'
        )
        with pytest.raises(RecordError, match=told):
            nopad.pack_dataset(CHATS, 12, tokenizer=tok)
        dataset = nopad.pack_dataset(CHATS * 700, 12, tokenizer=tok, over_long="drop")  # several blocks
        kept = sorted(sequences_of(dataset))
        assert kept[:2] == [0, 3]
        assert all(number % 3 != 1 for number in kept)
        counts = dataset.manifest.counts
        assert counts["records"] == 2100 == len(kept) + counts["dropped"]
        assert f"of 2,100 records {counts['dropped']:,} dropped as too long" in repr(dataset)
        assert nopad.verify(dataset.path) == []

    def test_the_first_and_the_last_thousand_are_dropped(self):
        tok = templates.tokenizer(templates.PLAIN)
        records = [CHATS[1]] * 1500 + [CHATS[0]] + [CHATS[1]] * 1500
        dataset = nopad.pack_dataset(records, 12, tokenizer=tok, over_long="drop")
        assert list(sequences_of(dataset)) == [1500]
        assert (dataset.manifest.counts["records"], dataset.manifest.counts["dropped"]) == (3001, 3000)
        assert nopad.verify(dataset.path) == []
        with pytest.raises(RecordError, match=r"nothing to pack: 1,500 records gave no sequence \(.* 1,500 dropped"):
            nopad.pack_dataset(records[:1500], 12, tokenizer=tok, over_long="drop")

    def test_several_sequences_of_a_record(self):
        task = nopad.tasks.Chat(templates.tokenizer(templates.REWRITING), rewriting="expand")
        records = [{"messages": chat("is it", "yes when no", "why", "no")}, *CHATS[:1]]
        dataset = nopad.pack_dataset(records, 32, task=task)
        expected = task.encode(records)
        found = sequences_of(dataset, "labels")
        made = [expected.sequences.part(n, n + 1) for n in range(3)]
        assert sorted(found[0]) == sorted(
            [(one.tokens["input_ids"].tolist(), one.tokens["labels"].tolist()) for one in made[:2]]
        )
        assert len(found[1]) == 1
        assert nopad.verify(dataset.path) == []

    @pytest.mark.parametrize("as_task", [False, True])
    def test_arrays_within_tools_are_lists(self, as_task):
        """So pandas gives nested lists; a template can neither write them as JSON nor test them."""
        tok = templates.tokenizer(templates.TOOLS)
        required = {"type": "object", "properties": {}, "required": ["city"], "most": 5}
        tool = {"type": "function", "function": {"name": "weather", "parameters": required}}
        call = {"type": "function", "function": {"name": "weather", "arguments": {"city": ["a", "b"]}}}
        messages = [*chat("is it", "no"), {"role": "assistant", "content": "yes", "tool_calls": [call]}]
        record = {"messages": messages, "tools": [tool]}
        arrays = copy.deepcopy(record)
        arrays["tools"][0]["function"]["parameters"] |= {"required": np.array(["city"], object), "most": np.int64(5)}
        arrays["messages"][2]["tool_calls"][0]["function"]["arguments"]["city"] = np.array(["a", "b"], object)
        arrays["tools"] = np.array(arrays["tools"], object)
        how = {"task": nopad.tasks.Chat(tok)} if as_task else {"tokenizer": tok}
        found = sequences_of(nopad.pack_dataset([arrays], 64, **how))
        assert found == sequences_of(nopad.pack_dataset([record], 64, **how))

    @pytest.mark.parametrize("over_long", ["drop", "truncate"])
    @pytest.mark.parametrize("as_task", [False, True])
    @pytest.mark.parametrize(
        "turns",
        [
            ("is it", "yes when no", "why why why why why why", "no"),  # the second is too long
            ("is it", "yes yes yes yes yes yes yes when no", "why", "no"),  # the first is, since it is not rewritten
            ("is it", "yes when no", "why why why why why why", "no", "why", "no", "why", "no"),
        ],
    )
    def test_one_of_several_sequences_is_too_long(self, turns, as_task, over_long):
        """It counted as a record that was left out, so the dataset failed its own verification."""
        tok = templates.tokenizer(templates.REWRITING)
        how = {"tokenizer": tok, "chat": {"rewriting": "expand"}}
        if as_task:
            how = {"task": nopad.tasks.Chat(tok, rewriting="expand")}
        records = [{"messages": chat(*turns)}, {"messages": chat("is it", "no")}]
        dataset = nopad.pack_dataset(records, 13, over_long=over_long, **how)
        assert sorted(sequences_of(dataset)) == [0, 1]
        counts = dataset.manifest.counts
        assert (counts["records"], counts["truncated"], counts["dropped"], counts["empty_skipped"]) == (2, 1, 0, 0)
        assert nopad.verify(dataset.path) == []


def test_pairs_of_texts():
    tok = tokenizer()
    records = [{"a": "is it red ?", "b": "no", "label": 1}, {"a": "why", "b": "why not , yes", "label": 0}]
    dataset = nopad.pack_dataset(records, 32, tokenizer=tok, text_pair=("a", "b"))
    for number, record in enumerate(records):
        [(ids, label)] = sequences_of(dataset, "label")[number]
        assert (ids, label) == (tok(record["a"], record["b"])["input_ids"], record["label"])
    assert dataset[0]["token_type_ids"].size == dataset[0].input_ids.size


@pytest.mark.parametrize("special", [True, False])
def test_a_pair_without_a_token_is_an_empty_record(special):
    """Special tokens make no record of nothing, as they make none of a single text."""
    tok = copy.deepcopy(tokenizer())
    if not special:
        tok.backend_tokenizer.post_processor = None
    records = [{"a": "is it", "b": "no"}, {"a": "", "b": ""}, {"a": "why", "b": ""}]
    with pytest.warns(UserWarning, match="1 of 3 records have no token and are left out"):
        dataset = nopad.pack_dataset(records, 32, tokenizer=tok, text_pair=("a", "b"))
    assert (dataset.manifest.counts["records"], dataset.manifest.counts["empty_skipped"]) == (3, 1)
    assert sorted(sequences_of(dataset)) == [0, 2]
    with pytest.raises(RecordError, match=r"the dataset, record 1.*empty"):
        nopad.pack_dataset(records, 32, tokenizer=tok, text_pair=("a", "b"), empty="error")


def test_columns_that_a_task_does_not_read_are_named():
    task = nopad.tasks.Classification(tokenizer(), ["no", "yes"])
    records = [{"text": "yes", "label": "no", "url": "x", "stars": 3}] * 3
    dataset = nopad.pack_dataset(records, 8, task=task)
    assert "columns left out: url, stars" in repr(dataset)
    dataset = nopad.pack_dataset(records, 8, task=task, carry=["stars"])
    assert dataset.manifest.source["left_out"] == ["url"]
    chats = nopad.tasks.Chat(templates.tokenizer())
    assert nopad.pack_dataset(CHATS, 32, task=chats).manifest.source["left_out"] == ["source"]


def test_a_task_takes_the_capacity_as_its_longest_sequence():
    records = [{"text": "yes why not", "label": "no"}, {"text": "yes", "label": "yes"}] * 20
    task = nopad.tasks.Classification(tokenizer(), ["no", "yes"])
    dataset = nopad.pack_dataset(records, 4, task=task, over_long="truncate")
    assert (dataset.manifest.counts["truncated"], task.max_length) == (20, None)
    found = {number: int(row["labels"][at]) for row in dataset for at, number in enumerate(row.seq_index.tolist())}
    assert found == {number: number % 2 for number in range(40)}


@pytest.mark.parametrize(
    ("data", "options", "error", "message"),
    [
        ("folder/a.jsonl", {}, SourceError, "is a path, and pack_dataset takes data in memory; give nopad.open_source"),
        ([], {}, SourceError, "there is no record"),
        ([5, 6], {}, SourceError, "a list of ids is one sequence; give a list of such lists"),
        (5, {}, SourceError, "int is no input"),
        ([[1] * 9], {}, RecordError, 'row 1: 9 tokens, capacity is 8; choose over_long="truncate", "split" or "drop"'),
        ([{"text": "a"}], {}, OptionError, "these are texts, and there is no tokenizer; give tokenizer="),
        (["a"], {}, OptionError, "these are texts, and there is no tokenizer; give tokenizer="),
        ([{"a": "x", "b": "y"}], {"text_pair": ("a", "b")}, OptionError, "memory holds texts; give tokenizer="),
        ([{"a": "x", "b": "y"}], {"text_pair": "ab"}, OptionError, "text_pair is 'ab'; it is two columns"),
        ([{"text": "a", "messages": []}], {}, OptionError, r"a text and a chat \(messages\); say which: text_field="),
        ([{"messages": []}], {}, OptionError, "memory holds chats; give the tokenizer= of the model that learns them"),
        ([{"messages": []}], {"tokenizer": 5}, OptionError, "the tokenizer is a int; give one of transformers"),
        ([{"messages": []}], {"chat": "yes"}, OptionError, "chat is 'yes'; it is True, False, None, or a dict of opt"),
        ([{"messages": []}], {"chat": True, "text_field": "a"}, OptionError, "text_field= and chat=True read the rec"),
        ([[1]], {"chat": True, "pad_id": 0}, OptionError, "chat=True and pad_id= read the records in two ways"),
        (nopad.open_source([[1]]), {"pad_id": 0}, OptionError, "pad_id is for nopad.open_source, which opened these"),
        (nopad.open_source([[1]]), {"chat": True}, OptionError, "chat= are for records; give them to nopad.open_so"),
        ([{"text": "a", "label": None}], {"tokenizer": "t"}, SourceError, "'label' is null in every record that was"),
        ([{"input_ids": [1], "labels": None}], {}, SourceError, "the column 'labels' is null in every record that"),
        ([{"x": 1}], {"task": "chat", "chat": True}, OptionError, "the task says which columns it reads; leave text_"),
        ([[1]], {"task": "chat"}, SourceError, "a task is for records, and these are list"),
        ([{"x": 1}], {"task": "chat"}, OptionError, "task is a str; give one of nopad.tasks"),
        ([[1]], {"depth": 0}, OptionError, "depth"),
        ([[1]], {"over_long": "cut"}, OptionError, "over_long is 'cut'"),
    ],
)
def test_what_is_refused(data, options, error, message):
    with pytest.raises(error, match=message):
        nopad.pack_dataset(data, 8, **options)


def test_tasks_that_packs_on_disk_cannot_hold():
    several = nopad.tasks.SeveralLabels(tokenizer(), 3)
    with pytest.raises(OptionError, match=r"'labels' has .* numbers per sequence, and a packed dataset holds one"):
        nopad.pack_dataset([{"text": "yes", "labels": [2]}], 8, task=several)
    pairs = nopad.tasks.Pairs(tokenizer())
    with pytest.raises(OptionError, match="the task reward makes 2 sequences that stay in one step"):
        nopad.pack_dataset([{"prompt": "why", "chosen": " no", "rejected": " yes"}], 8, task=pairs)
    limited = nopad.tasks.CausalLM(tokenizer(), max_length=16)
    with pytest.raises(OptionError, match=r"the task has max_length=16 .* and packs capacity=8"):
        nopad.pack_dataset([{"text": "yes"}], 8, task=limited)


class TestTheTemporaryFolder:
    def test_it_goes_with_the_dataset_and_not_with_copies(self):
        dataset = nopad.pack_dataset([[1, 2], [3]], 4)
        path = dataset.path
        copy = pickle.loads(pickle.dumps(dataset))
        del copy
        gc.collect()
        if not (child := os.fork()):
            del dataset
            gc.collect()
            os._exit(0)
        os.waitpid(child, 0)
        assert path.exists()
        rows = dataset.to_hf()
        del dataset
        gc.collect()
        assert not path.exists()
        assert rows[0]["input_ids"] in ([1, 2, 3], [3, 1, 2])

    def test_a_failure_leaves_none(self, tmp_path, monkeypatch):
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
        with pytest.raises(RecordError):
            nopad.pack_dataset([[1] * 9], 8)
        assert list(tmp_path.iterdir()) == []

    def test_an_interruption_is_one(self, tmp_path, monkeypatch):
        def rows():
            yield from ({"input_ids": [n]} for n in range(1500))
            raise KeyboardInterrupt

        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
        with pytest.raises(KeyboardInterrupt, match="nothing is kept; with output= the same call goes on"):
            nopad.pack_dataset(rows(), 8)
        assert list(tmp_path.iterdir()) == []

    def test_a_loader_keeps_it(self):
        loader = nopad.PackedLoader(nopad.pack_dataset([[1, 2], [3], [4, 5, 6]], 4), rows=1, last="fill")
        gc.collect()
        assert sorted(n for batch in loader for n in batch.records["seq_index"].tolist()) == [0, 1, 2]


class TestAssistantMasks:
    ROWS = (
        {"input_ids": [7, 8, 9], "assistant_masks": [0, 1, 1], "n": 1},
        {"input_ids": [5], "assistant_masks": [0], "n": 2},
    )

    @pytest.mark.parametrize("form", [list, as_dataset, as_arrow])
    def test_they_become_labels(self, form):
        dataset = nopad.pack_dataset(form(list(self.ROWS)), 8)
        assert sequences_of(dataset, "labels", "n") == {0: [([7, 8, 9], [-100, 8, 9], 1)], 1: [([5], [-100], 2)]}
        assert dataset.manifest.carried == {"labels": "token", "n": "sequence"}
        assert dataset.manifest.source["left_out"] == []
        assert nopad.verify(dataset.path) == []

    def test_padding_and_cuts(self):
        rows = [{"input_ids": [0, 7, 8, 9, 0], "assistant_masks": [1, 0, 1, 1, 1]}]
        assert sequences_of(nopad.pack_dataset(rows, 8, pad_id=0), "labels") == {0: [([7, 8, 9], [-100, 8, 9])]}
        cut = nopad.pack_dataset(rows, 2, pad_id=0, over_long="split")
        assert sorted(sequences_of(cut, "labels")[0]) == [([7, 8], [-100, 8]), ([9], [9])]

    def test_by_name_they_are_a_column(self):
        dataset = nopad.pack_dataset(list(self.ROWS), 8, carry=["assistant_masks"])
        assert dataset.manifest.carried == {"assistant_masks": "token"}

    @pytest.mark.parametrize(
        ("more", "error", "message"),
        [
            (
                {"labels": [7, 8, 9]},
                SourceError,
                "'assistant_masks' becomes the labels, and there is a column 'labels'",
            ),
            ({"label": 1}, SourceError, "'assistant_masks' becomes the labels, and there is a column 'label' too"),
            ({"assistant_masks": 1}, SourceError, "'assistant_masks' is int64, not lists of 0 and 1; convert it"),
            ({"assistant_masks": [0, 2, 1]}, RecordError, r"row 1: assistant_masks\[1\] is 2; a mask holds 0 and 1"),
            ({"assistant_masks": [0, 1]}, RecordError, "'assistant_masks' has 2 values beside 3 in 'input_ids'"),
        ],
    )
    def test_what_is_refused(self, more, error, message):
        with pytest.raises(error, match=message):
            nopad.pack_dataset([self.ROWS[0] | more], 8)


def test_no_warning_where_nothing_is_left_out():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        nopad.pack_dataset(ROWS, 32)


def test_an_output_that_no_file_system_has():
    with pytest.raises(nopad.errors.OptionError, match="this name has a character NUL"):
        nopad.pack_dataset([[1, 2]], 8, output="a\0b")


@pytest.mark.parametrize(
    "labels",
    [
        pd.array([1, None], dtype="Float64"),
        pd.Categorical([1, None]),
        pd.Index([1, None], dtype="Float64"),
        pa.array([1.0, None]),
        np.ma.array([1.0, 2.0], mask=[0, 1]),
    ],
    ids=lambda labels: type(labels).__name__,
)
def test_values_that_are_missing_in_arrays_are_no_numbers(labels):
    """They became NaN."""
    records = [{"input_ids": [5, 6], "labels": [1.0, 2.0]}, {"input_ids": [5, 6], "labels": labels}]
    with pytest.raises(RecordError, match="row 2: 'labels' is "):
        nopad.pack_dataset(records, 8)


def test_pairs_that_are_bad_do_not_count_as_truncated(tmp_path):
    label = [0, None, 1, 2]
    texts = ["is it red ?", "is it red ? " * 20, "yes", "it is red . " * 20]
    records = [{"a": text, "b": "yes", "label": one} for text, one in zip(texts, label, strict=True)]
    how = {"text_pair": ("a", "b"), "tokenizer": tokenizer(), "over_long": "truncate", "on_bad_record": "skip"}
    packed, good = (
        nopad.pack_dataset(part, 16, output=tmp_path / str(number), **how).manifest.counts
        for number, part in enumerate((records, [one for one in records if one["label"] is not None]))
    )
    assert packed["truncated"] == good["truncated"] == 1
    assert packed["truncated_tokens"] == good["truncated_tokens"]
    assert packed["bad_skipped"] == 1
