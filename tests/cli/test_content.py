"""Chats, pairs, several fields, CSV, JSON arrays, other suffixes and standard input, through plan, pack and verify."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.tasks.tiny import tokenizer as tiny

import nopad
from nopad.corpus import open_source
from nopad.corpus.encoders import Chats
from nopad.errors import OptionError

TEMPLATE = (
    "{% for one in messages %}<|{{ one.role }}|> {{ one.content }} [EOS]{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|> {% endif %}"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a tokenizer that has a chat template."""
    path = tmp_path_factory.mktemp("model")
    made = type(tiny())(
        tokenizer_object=tiny()._tokenizer,
        model_input_names=tiny().model_input_names,
        **tiny().special_tokens_map,
    )
    made.chat_template = TEMPLATE
    made.save_pretrained(path)
    return path


def chat(question: str, answer: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


@pytest.fixture
def chats(tmp_path):
    path = tmp_path / "chats.jsonl"
    rows = [chat("is it ?", "yes"), chat("why not", "one two three four"), chat("who", "a dog")]
    path.write_text("".join(json.dumps({"messages": row, "id": n}) + "\n" for n, row in enumerate(rows)))
    return path


@pytest.mark.parametrize("verb", [("pack", "-o", "out"), ("plan",)])
def test_a_tokenizer_that_cannot_encode_chats_is_refused_before_work_begins(call, chats, tmp_path, monkeypatch, verb):
    monkeypatch.chdir(tmp_path)
    bare = type(tiny())(tokenizer_object=tiny()._tokenizer, model_input_names=tiny().model_input_names)
    bare.save_pretrained("bare")
    more = [*chats.read_text().splitlines(), json.dumps({"prompt": "is it ?", "completion": "yes"})]
    Path("later.jsonl").write_text("".join(line + "\n" for line in reversed(more)))
    for file, told in ((chats, "the tokenizer has no chat template; "), ("later.jsonl", "no end-of-sequence token; ")):
        said = call(verb[0], file, "-c", 64, "-t", "bare", "--chat", *verb[1:]).error()
        assert told in said
        assert not Path("out").exists()
        with pytest.raises(OptionError, match=told):
            open_source(file, encoder=Chats(bare, capacity=64, over_long="error"))


@pytest.fixture
def pairs(tmp_path):
    path = tmp_path / "pairs.csv"
    path.write_text("first,second,label\nis it ?,yes,1\nwhy not,007,0\none two three,four five,1\n")
    return path


def sequences(out, *columns):
    """Each record's number, ids and columns, as they are in the packs."""
    found = {}
    for row in nopad.open_packed(out):
        ends = np.cumsum(row.seq_lengths)[:-1]
        parts = [np.split(row[name], ends) for name in ("input_ids", *columns)]
        for number, *values in zip(row.seq_index.tolist(), *parts, strict=True):
            found[number] = [value.tolist() for value in values]
    return [found[number] for number in sorted(found)]


def expected(question, answer):
    """Ids of a chat, and labels on the answer and the token that ends it, written by hand."""
    ids = tiny()(f"<|user|> {question} [EOS]<|assistant|> {answer} [EOS]", add_special_tokens=False)["input_ids"]
    learned = len(answer.split()) + 1
    return [ids, [-100] * (len(ids) - learned) + ids[-learned:]]


class TestChats:
    def test_pack_and_verify(self, call, chats, folder, tmp_path):
        out = tmp_path / "out"
        ran = call("pack", chats, "-o", out, "-c", 16, "-t", folder)
        assert (ran.code, ran.err) == (0, "")
        assert "columns that are left out: id" in ran
        assert sequences(out, "labels") == [
            expected("is it ?", "yes"),
            expected("why not", "one two three four"),
            expected("who", "a dog"),
        ]
        ran = call("verify", out, "-s", chats, "-t", folder)
        assert ran.code == 0
        assert "every token compared with its source" in ran
        ran = call("verify", out, "-s", chats)
        assert ran.code == 2
        assert (
            ran.error()
            == f"{out}: it was packed from chats; give the --tokenizer of the packing, for its chat template"
        )
        chats.write_text(chats.read_text().replace("dog", "cat"))
        assert call("verify", out, "-s", chats, "-t", folder).code == 1

    def test_plan_counts_the_same(self, call, chats, folder):
        found = json.loads(call("plan", chats, "-c", 16, "-t", folder, "--json"))
        assert found["tokens"] == sum(
            len(expected(*one)[0]) for one in (("is it ?", "yes"), ("why not", "one two three four"), ("who", "a dog"))
        )

    @pytest.mark.parametrize("form", ["conversations", "prompt", "array", "parquet"])
    def test_every_form(self, call, tmp_path, folder, form):
        row = {"messages": chat("who", "a dog")}
        if form == "conversations":
            row = {"conversations": [{"from": "human", "value": "who"}, {"from": "gpt", "value": "a dog"}]}
        elif form == "prompt":
            row = {"prompt": chat("who", "a dog")[:1], "completion": chat("who", "a dog")[1:]}
        path = tmp_path / "a.jsonl"
        path.write_text(json.dumps(row) + "\n")
        if form == "array":
            path = tmp_path / "a.json"
            path.write_text(json.dumps([row], indent=1))
        elif form == "parquet":
            import pyarrow as pa
            import pyarrow.parquet as pq

            path = tmp_path / "a.parquet"
            pq.write_table(pa.Table.from_pylist([row]), path)
        out = tmp_path / "out"
        ran = call("pack", path, "-o", out, "-c", 16, "-t", folder)
        assert (ran.code, ran.err) == (0, "")
        assert sequences(out, "labels") == [expected("who", "a dog")]
        assert call("verify", out, "-s", path, "-t", folder).code == 0
        assert json.loads(call("plan", path, "-c", 16, "-t", folder, "--json"))["sequences"] == 1

    def test_options_reach_the_encoder(self, call, tmp_path, folder):
        path = tmp_path / "a.jsonl"
        path.write_text(json.dumps({"messages": chat("who", "a dog") + chat("when", "one")}) + "\n")
        out = tmp_path / "out"
        assert call("pack", path, "-o", out, "-c", 32, "-t", folder, "--chat-option", "last_only=true").code == 0
        ((_, labels),) = sequences(out, "labels")
        assert tiny().decode([one for one in labels if one != -100]) == "one [EOS]"
        assert call("verify", out, "-s", path, "-t", folder).code == 0
        ran = call("plan", path, "-c", 32, "-t", folder, "--chat-option", "lastonly=true")
        assert (ran.code, ran) == (2, "")
        assert "chats have no option 'lastonly'; they have last_only" in ran.error()

    def test_a_chat_cut_before_the_answer_is_empty(self, call, chats, folder, tmp_path):
        out = tmp_path / "out"
        ran = call("pack", chats, "-o", out, "-c", 6, "-t", folder, "--over-long", "truncate")
        assert ran.code == 0
        # "is it ?" fills 5 of 6 tokens and the role the sixth; of the others one and two words of the answer are left
        assert "3 records, 2 truncated, 1 skipped as empty" in ran
        assert call("verify", out, "-s", chats, "-t", folder).code == 0
        ran = call("pack", chats, "-o", tmp_path / "b", "-c", 6, "-t", folder, "--over-long", "split")
        assert "choose --over-long truncate or drop" in ran.error()

    def test_a_bad_chat_names_file_and_line(self, call, chats, folder, tmp_path):
        with open(chats, "a") as file:
            file.write(json.dumps({"messages": [{"role": "user", "content": "who"}]}) + "\n{broken\n")
        ran = call("pack", chats, "-o", tmp_path / "out", "-c", 16, "-t", folder)
        assert (ran.code, ran) == (2, "")
        assert ran.error().startswith(f"{chats}, line 4: has no assistant's turn")
        ran = call("pack", chats, "-o", tmp_path / "out", "-c", 16, "-t", folder, "--on-bad-record", "skip")
        assert ran.code == 0
        assert "5 records, 2 skipped as bad" in ran

    def test_chats_need_a_tokenizer(self, call, chats):
        ran = call("plan", chats, "-c", 16)
        assert (ran.code, ran) == (2, "")
        assert ran.error() == (
            f"{chats} holds chats; give the --tokenizer of the model that learns them, for its chat template, or read "
            "one field as text: --text-field"
        )

    def test_a_text_beside_a_chat(self, call, tmp_path, words):
        path = tmp_path / "a.jsonl"
        path.write_text('{"text": "w1 w2", "messages": []}\n')
        how = ["plan", path, "-c", 16, "-t", words, "--json"]
        assert call(*how).error() == (
            f"{path} holds a text and a chat (messages); say which: --text-field text, or --chat"
        )
        assert json.loads(call(*how, "--text-field", "text"))["tokens"] == 4
        assert json.loads(call(*how, "--no-chat"))["tokens"] == 4

    def test_held_out(self, call, tmp_path, folder):
        path = tmp_path / "a.jsonl"
        path.write_text("".join(json.dumps({"messages": chat("who", "a dog")}) + "\n" for _ in range(60)))
        out = tmp_path / "out"
        assert call("pack", path, "-o", out, "-c", 16, "-t", folder, "--validation", "10%").code == 0
        assert call("verify", out, "-s", path, "-t", folder).code == 0
        expanded = ["--chat-option", "rewriting=expand", "--validation", "10%"]
        assert call("pack", path, "-o", tmp_path / "b", "-c", 16, "-t", folder, *expanded).code == 2


class TestPairs:
    def test_pack_and_verify(self, call, pairs, folder, tmp_path):
        out = tmp_path / "out"
        ran = call(
            "pack", pairs, "-o", out, "-c", 16, "-t", folder, "--text-pair", "first", "second", "--carry", "label"
        )
        assert (ran.code, ran.err) == (0, "")
        texts = [("is it ?", "yes"), ("why not", "007"), ("one two three", "four five")]
        by_transformers = [tiny()(*one) for one in texts]
        assert sequences(out, "token_type_ids") == [
            [one["input_ids"], one["token_type_ids"]] for one in by_transformers
        ]
        labels = {n: v for row in nopad.open_packed(out) for n, v in zip(row.seq_index, row["label"], strict=True)}
        assert [labels[n] for n in range(3)] == [1, 0, 1]
        assert call("verify", out, "-s", pairs, "-t", folder).code == 0

    def test_truncated_longest_first(self, call, pairs, folder, tmp_path):
        out = tmp_path / "out"
        how = ["-c", 7, "-t", folder, "--text-pair", "first", "second", "--over-long", "truncate"]
        ran = call("pack", pairs, "-o", out, *how)
        assert ran.code == 0
        assert "3 records, 1 truncated" in ran
        cut = tiny()("one two three", "four five", truncation="longest_first", max_length=7)["input_ids"]
        assert sequences(out)[2] == [cut]
        assert call("verify", out, "-s", pairs, "-t", folder).code == 0

    def test_no_such_field(self, call, pairs, folder):
        ran = call("plan", pairs, "-c", 16, "-t", folder, "--text-pair", "first", "third")
        assert ran.code == 2
        assert ran.error() == f'{pairs}: no column \'third\'; it has the columns "first", "second", "label"'


class TestMissingColumns:
    """A column that a whole input lacks is no bad record: it is an error of that input, whatever is skipped."""

    SKIP: ClassVar = ["--on-bad-record", "skip"]

    @pytest.mark.parametrize("skip", [[], SKIP])
    @pytest.mark.parametrize(
        ("name", "content"),
        [
            ("pairs.csv", "first,second\n"),
            ("pairs.tsv", "first\tsecond\n"),
            ("pairs.jsonl", ""),
            ("pairs.json", ""),
            ("pairs.parquet", ""),
        ],
    )
    def test_a_mistyped_one_is_named_before_any_record(self, call, folder, tmp_path, name, content, skip):
        path, out = tmp_path / name, tmp_path / "out"
        rows = [{"first": "is it ?", "second": "yes"}] * 3
        if name.endswith(".parquet"):
            pq.write_table(pa.Table.from_pylist(rows), path)
        elif name.endswith(".json"):
            path.write_text(json.dumps(rows))
        elif name.endswith(".jsonl"):
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        else:
            between = content[5]
            path.write_text(content + f"is it ?{between}yes\n" * 3)
        says = f"{path}: no column 'Second'; did you mean 'second'? It has the columns \"first\", \"second\""
        for how in (["--text-pair", "first", "Second"], ["--text-field", "Second", "--text-field", "first"]):
            ran = call("plan", path, "-c", 16, "-t", folder, *how, *skip)
            assert (ran.code, ran, ran.error()) == (2, "", says)
            assert call("pack", path, "-o", out, "-c", 16, "-t", folder, *how, *skip).error() == says
        for option in ("--text-field=Second", "--carry=Second"):
            field = ["--text-field=first"] if "carry" in option else []
            ran = call("plan", path, "-c", 16, "-t", folder, option, *field, *skip)
            assert (ran.code, ran) == (2, "")
            assert "no column 'Second'; did you mean 'second'? It has the columns" in ran.error()
            assert "on-bad-record" not in ran.error()
        assert not out.exists()

    @pytest.mark.parametrize("skip", [[], SKIP])
    def test_texts_beside_a_table_are_refused_for_plan_and_pack_alike(self, call, pairs, folder, tmp_path, skip):
        notes, out = tmp_path / "notes", tmp_path / "out"
        notes.mkdir()
        (notes / "a.md").write_text("is it ?")
        (notes / "b.txt").write_text("yes")
        says = f"{notes}/a.md: no column 'first'; it has the columns \"text\""
        how = ["-c", 16, "-t", folder, "--text-pair", "first", "second", *skip]
        for inputs in ([pairs, notes], [notes, pairs]):
            assert call("plan", *inputs, *how).error() == says
            assert call("pack", *inputs, "-o", out, *how).error() == says
        assert not out.exists()

    @pytest.mark.parametrize("skip", [[], SKIP])
    def test_an_input_without_chats(self, call, chats, folder, tmp_path, skip):
        other = tmp_path / "other.jsonl"
        other.write_text('{"body": "is it ?"}\n')
        ran = call("plan", chats, other, "-c", 32, "-t", folder, *skip)
        assert ran.code == 2
        assert ran.error().startswith(f'{other}: no chats; it has the columns "body", and a chat is')

    def test_a_field_that_one_of_several_files_lacks(self, call, words, tmp_path):
        (tmp_path / "a.jsonl").write_text('{"body": "w1"}\n')
        (tmp_path / "b.jsonl").write_text('\n{"text": "w1", "Body": "w2"}\n')
        ran = call("plan", tmp_path / "a.jsonl", tmp_path / "b.jsonl", "-t", words, "--text-field", "body", *self.SKIP)
        assert ran.code == 2
        assert ran.error() == (
            f"{tmp_path}/b.jsonl: no column 'body'; did you mean 'Body'? It has the columns \"text\", \"Body\""
        )

    @pytest.mark.parametrize("fields", [["body"], ["body", "more"]])
    def test_records_that_lack_what_a_late_one_has_are_bad_records(self, call, words, tmp_path, fields):
        path = tmp_path / "a.jsonl"
        path.write_text('{"other": "w1"}\n' * 1500 + '{"body": "w1", "more": "w2"}\n')
        how = ["plan", path, "-t", words, *(f"--text-field={field}" for field in fields)]
        assert f"{path}, line 1: no 'body' in this" in call(*how).error()
        assert json.loads(call(*how, *self.SKIP, "--json"))["sequences"] == 1


class TestText:
    def test_a_csv_file(self, call, tmp_path, words):
        (tmp_path / "in").mkdir()
        (tmp_path / "in" / "a.csv").write_text('text,n\n"w1 w2, w3",1\nw4,2\n')
        (tmp_path / "in" / "b.tsv").write_text("text\tn\nw5 w6\t3\n")
        out = tmp_path / "out"
        ran = call("pack", tmp_path / "in", "-o", out, "-c", 8, "-t", words, "--carry", "n")
        assert (ran.code, ran.err) == (0, "")
        assert [one for (one,) in sequences(out)] == [[1, 4, 0, 6, 2], [1, 7, 2], [1, 8, 9, 2]]
        assert call("verify", out, "-s", tmp_path / "in", "-t", words).code == 0

    def test_several_fields_are_joined(self, call, tmp_path, words):
        path = tmp_path / "a.jsonl"
        path.write_text('{"title": "w1", "body": "w2 w3"}\n{"title": "w4", "body": null}\n')
        out = tmp_path / "out"
        how = [path, "-c", 8, "-t", words, "--text-field", "title", "--text-field", "body", "--on-bad-record", "skip"]
        assert call("pack", *how, "-o", out).code == 0
        assert sequences(out) == [[[1, 4, 5, 6, 2]]]
        assert call("verify", out, "-s", path, "-t", words).code == 0
        ran = call("plan", *how[:-2])
        assert ran.error().startswith(f"{path}, line 2: 'body' is null, not a string")

    def test_suffixes(self, call, tmp_path, words):
        folder = tmp_path / "in"
        folder.mkdir()
        for name, text in (("a.py", "w1"), ("b.html", "w2"), ("c.txt", "w3")):
            (folder / name).write_text(text)
        out = tmp_path / "out"
        assert call("pack", folder, "-o", out, "-c", 8, "-t", words, "--suffix", ".py", "--suffix", "html").code == 0
        assert sequences(out) == [[[1, 4, 2]], [[1, 5, 2]]]
        assert call("verify", out, "-s", folder, "-t", words).code == 0
        ran = call("plan", folder, "-c", 8, "-t", words, "--suffix", ".zip")
        assert (ran.code, ran.error()) == (2, ".zip files are no text; choose other suffixes, or convert them")

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["--text-field", "a", "--chat"], "--text-field and --chat read the records in two ways"),
            (["--text-pair", "a", "b", "--chat"], "--text-pair and --chat read the records in two ways"),
            (["--ids-field", "a", "--chat"], "--chat and --ids-field read the records in two ways"),
            (["--text-field", "a", "--text-field", "a"], "--text-field names a, a; name each field once"),
            (["--chat-option", "last_only=true"], "last_only is an option of chats, and"),
            (["--text-pair", "a", "b", "--no-special-tokens"], "--no-special-tokens: chats and pairs are made with"),
        ],
    )
    def test_two_ways(self, call, jsonl, arguments, message):
        ran = call("plan", jsonl, "-c", 8, *arguments)
        assert (ran.code, ran) == (2, "")
        assert message in ran.error()


class TestBadRecords:
    """In CSV, TSV and JSON arrays, each is named, skipped and counted by itself, as in JSON Lines."""

    FILES: ClassVar = {
        "a.csv": (b"text,n\nw1,1\nw3\nw4,4\n\xff,5\n" + b"w1,1\n" * 1000 + b"w2,many\nw3,3\n", "line 3: 1 cells"),
        "a.tsv": (b"text\tn\nw1\t1\nw2\nw3\t2\tmore\n" + b"w1\t1\n" * 1000 + b"w2\tmany\nw3\t3\n", "line 3: 1 cells"),
        "a.json": (
            b'[{"text": "w1", "n": 1},\n5, {"text": "w2", "n": "x"}, "no", [1], {"text": "w3", "n": 3}, null]',
            "line 2: not a JSON object but 5",
        ),
    }

    @pytest.mark.parametrize(("name", "bad", "good"), [("a.csv", 3, 1003), ("a.tsv", 3, 1002), ("a.json", 5, 2)])
    @pytest.mark.parametrize("encoded", [False, True])
    def test_one_by_one(self, call, tmp_path, words, name, bad, good, encoded):
        content, first = self.FILES[name]
        path, out = tmp_path / name, tmp_path / "out"
        path.write_bytes(content)
        fields = ["--text-field", "text"] + (["--text-field", "text2"] if encoded else [])
        if encoded:
            mark = {
                "a.csv": (b"text,n", b"text,n,text2"),
                "a.tsv": (b"text\tn", b"text\tn\ttext2"),
                "a.json": (b"}", b', "text2": "w5"}'),
            }
            tail = {"a.csv": b",w5\n", "a.tsv": b"\tw5\n"}.get(name)
            lines = content.replace(*mark[name])
            if tail:
                head, *rest = lines.split(b"\n")[:-1]
                lines = head + b"\n" + b"".join(line + tail for line in rest)
            path.write_bytes(lines)
        how = ["pack", path, "-c", 16, "-t", words, *fields, "--carry", "n"]
        ran = call(*how, "-o", out)
        assert ran.code == 2
        assert ran.error().startswith(f"{path}, {first}" if not encoded else f"{path}, ")
        ran = call(*how, "-o", out, "--on-bad-record", "skip", "--json")
        assert ran.code == 0, ran.err
        counts = json.loads(ran)["datasets"][0]["counts"]
        assert (counts["records"], counts["bad_skipped"]) == (good + bad, bad)

    def test_what_nothing_behind_can_be_read_of_is_an_error_all_the_same(self, call, tmp_path, words):
        path = tmp_path / "a.json"
        path.write_text('[{"text": "w1"}, {"text": "w2", ]')
        ran = call("pack", path, "-o", tmp_path / "out", "-c", 8, "-t", words, "--on-bad-record", "skip")
        assert ran.code == 2
        assert f"{path}, line 1: broken JSON" in ran.error()


class TestStandardInput:
    def run(self, command, text, *arguments, cwd):
        return subprocess.run(command(*arguments), input=text, capture_output=True, text=True, cwd=cwd, timeout=120)

    @pytest.mark.parametrize("text", ['{"text": "w1 w2"}\n{"text": "w3"}\n', '[{"text": "w1 w2"}, {"text": "w3"}]'])
    def test_records(self, command, tmp_path, words, text):
        done = self.run(command, text, "plan", "-", "-c", 8, "-t", words, "--json", cwd=tmp_path)
        assert (done.returncode, done.stderr) == (0, "")
        assert json.loads(done.stdout)["tokens"] == 4 + 3

    @pytest.mark.parametrize(("form", "sign"), [("csv", ","), ("tsv", "\t")])
    def test_a_table_is_never_read_as_text_without_a_word(self, command, tmp_path, words, form, sign):
        text = f"n{sign}text\n1{sign}w1 w2\n2{sign}w3\n"
        how = ["plan", "-", "-c", 16, "-t", words, "--json"]
        done = self.run(command, text, *how, cwd=tmp_path)
        assert done.returncode == 2
        assert "as a " + form.upper() + " file with these columns does; say which it is: " in done.stderr
        assert f"--stdin-format {form} or --stdin-format text" in done.stderr
        for told, tokens in ((form, 4 + 3), ("text", len(text.split()) + 2)):
            done = self.run(command, text, *how, "--stdin-format", told, cwd=tmp_path)
            assert (done.returncode, done.stderr) == (0, "")
            assert json.loads(done.stdout)["tokens"] == tokens
        assert self.run(command, "w1 w2\nw3\n", *how, cwd=tmp_path).returncode == 0

    def test_tables_are_packed_and_verified(self, command, tmp_path, words):
        text = "n,text\n1,w1 w2\n2,w3\n"
        how = ["-", "-c", 8, "-t", words, "--stdin-format", "csv", "-o", "out"]
        assert self.run(command, text, "pack", *how, cwd=tmp_path).returncode == 0
        assert sequences(tmp_path / "out") == [[[1, 4, 5, 2]], [[1, 6, 2]]]
        how = ["verify", "out", "-s", "-", "-t", words]
        for more, code in ((["--stdin-format", "csv"], 0), ([], 2)):
            assert self.run(command, text, *how, *more, cwd=tmp_path).returncode == code

    def test_a_format_is_of_standard_input_only(self, call, jsonl, words):
        said = call("plan", jsonl, "-c", 8, "-t", words, "--stdin-format", "csv").error()
        assert said == "--stdin-format csv is of standard input, and no input is -; leave it out, or give -"

    def test_pack_and_verify(self, command, tmp_path, words):
        text = "w1 w2\nw3\n"
        how = ["-", "-c", 8, "-t", words, "--text-unit", "line", "-o", "out"]
        assert self.run(command, text, "pack", *how, cwd=tmp_path).returncode == 0
        assert sequences(tmp_path / "out") == [[[1, 4, 5, 2]], [[1, 6, 2]]]
        for given, code in ((text, 0), ("w1 w2\nw4\n", 1)):
            done = self.run(command, given, "verify", "out", "-s", "-", "-t", words, cwd=tmp_path)
            assert done.returncode == code, done.stdout

    def test_twice(self, call):
        assert call("plan", "-", "a=-", "-c", 8).error() == "- is standard input, and it can be read once; give it once"
