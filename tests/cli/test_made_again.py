"""The command that a report prints under "Make it again": it runs, and makes the same."""

from __future__ import annotations

import json
import shlex

import numpy as np
import pytest
import typer
from tests.cli.test_content import TEMPLATE
from tests.tasks.tiny import tokenizer as tiny

from nopad.cli.pack import pack
from nopad.cli.plan import plan
from nopad.planning import Plan
from nopad.report import read_subject
from nopad.store import Manifest
from nopad.store.manifest import split_folders


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """The table of other algorithms, which takes the most time, is not looked at here."""
    monkeypatch.setattr("nopad.report.subject.compare", lambda *given: [])


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    """A folder with a tokenizer that has a chat template."""
    path = tmp_path_factory.mktemp("model")
    made = type(tiny())(tokenizer_object=tiny()._tokenizer, **tiny().special_tokens_map)
    made.chat_template = TEMPLATE
    made.save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A folder of inputs of several kinds."""
    folder = tmp_path_factory.mktemp("data")
    words = ["one", "two", "three", "four", "five", "six", "yes", "no", "dog", "house"]
    rows = [
        {
            "text": " ".join(words[: 1 + n % 10]),
            "title": words[n % 10],
            "messages": [{"role": "user", "content": words[n % 10]}, {"role": "assistant", "content": words[n % 7]}],
            "ids": list(range(1, 2 + n % 9)),
            "weight": n / 2,
            "label": n % 2,
        }
        for n in range(40)
    ]

    def some(*columns):
        return "".join(json.dumps({name: row[name] for name in columns}) + "\n" for row in rows)

    (folder / "texts.jsonl").write_text(some("text", "title", "label", "weight"))
    (folder / "ids.jsonl").write_text(some("ids", "label", "weight"))
    (folder / "chats.jsonl").write_text(some("messages"))
    sentences = [f"The {word} is {n}. A {word} was {n} {n}. It is no {word}." for n, word in enumerate(words)]
    (folder / "documents.txt").write_text("\n\n".join(sentences))
    (folder / "pages").mkdir()
    (folder / "pages" / "a.html").write_text(" ".join(words * 3))
    (folder / "pages" / "b.md").write_text("dog")
    np.save(folder / "lengths.npy", np.arange(1, 13))
    return folder


CASES = {
    "a label that was found": ["texts.jsonl", "-t", "T", "--over-long", "truncate", "-c", 8],
    "carried": ["texts.jsonl", "-t", "T", "-c", 16, "--carry", "label", "--carry", "weight"],
    "nothing carried": ["texts.jsonl", "-t", "T", "-c", 16, "--carry", "none", "--no-special-tokens"],
    "fields": ["texts.jsonl", "-t", "T", "-c", 16, "--text-field", "title", "--text-field", "text"],
    "another field": ["texts.jsonl", "-t", "T", "-c", 16, "--text-field", "title", "--seed", 4],
    "pairs": ["texts.jsonl", "-t", "T", "-c", 10, "--text-pair", "title", "text", "--over-long", "drop"],
    "chats": ["chats.jsonl", "-t", "T", "-c", 32, "--chat-option", "last_only=true"],
    "ids": ["ids.jsonl", "-c", 8, "--ids-field", "ids", "--mask-field", "none", "--over-long", "split", "-d", 3],
    "an id cut off": ["ids.jsonl", "-c", 12, "--ids-field", "ids", "--pad-id", 1, "--vocab-size", 20],
    "suffixes": ["pages", "-t", "T", "-c", 9, "--suffix", "html", "--over-long", "split", "--text-unit", "line"],
    "held out": ["texts.jsonl", "-t", "T", "-c", 16, "--validation", "20%", "--seed", 2],
    "named": ["a=texts.jsonl", "-t", "T", "-c", 16, "--empty", "error", "--on-bad-record", "skip"],
    "conditions": ["texts.jsonl", "-t", "T", "-c", 16, "-O", "pack_multiple=2", "--even"],
    "an algorithm": ["texts.jsonl", "-t", "T", "-c", 16, "-a", "ffd"],
    "sentences": ["documents.txt", "-c", 64, "--pretrain", "bert", "--text-unit", "paragraph", "-P", "copies=2"],
}
PACKED = {
    "index": ["lengths.npy", "-c", 16, "--index-only"],
    "order": ["texts.jsonl", "-t", "T", "-c", 16, "--order", "source", "--shard-tokens", 64],
}
PLANNED = {"lengths": ["lengths.npy", "-c", 16], "lengths held out": ["lengths.npy", "-c", 16, "--validation", 0.25]}


def filled(words, data, tokenizer):
    """The arguments with the names of inputs as paths, and T as the tokenizer."""
    there = {path.name: str(path) for path in data.iterdir()} | {"T": str(tokenizer)}
    return [there.get(one, f"a={there['texts.jsonl']}" if one == "a=texts.jsonl" else one) for one in map(str, words)]


def again(call, command, words, tokenizer, out):
    """Run a report's command with the placeholders filled in as in `words`, and the output at `out`."""
    given = shlex.split(command if "-t" in words else command.replace(" --tokenizer TOKENIZER", ""))  # the default
    found = [{"INPUT": words[0], "a=INPUT": words[0], "TOKENIZER": str(tokenizer)}.get(one, one) for one in given]
    flag = "--out" if "--out" in found else "--output"
    found[found.index(flag) + 1] = str(out)
    ran = call(*found[1:])
    assert ran.code == 0, (command, ran.err)


@pytest.mark.parametrize("case", [*CASES, *PACKED])
def test_a_dataset(call, data, tokenizer, tmp_path, case):
    words = filled((CASES | PACKED)[case], data, tokenizer)
    ran = call("pack", *words, "-o", tmp_path / "out")
    assert ran.code == 0, ran.err
    for folder in split_folders(tmp_path / "out") or [tmp_path / "out"]:
        again(call, read_subject(folder).command, words, tokenizer, tmp_path / "more" / folder.name)
        name = folder.name if folder != tmp_path / "out" else "."
        made = tmp_path / "more" / folder.name / name
        assert Manifest.load(made).to_json() == Manifest.load(folder).to_json()


@pytest.mark.parametrize("case", [*CASES, *PLANNED])
def test_a_plan(call, data, tokenizer, tmp_path, case):
    words = filled((CASES | PLANNED)[case], data, tokenizer)
    one = [] if "-a" in words else ["-a", "auto"]
    one += [] if "-d" in words else ["-d", "none"]
    ran = call("plan", *words, *one, "-o", tmp_path / "a.plan.json")
    assert ran.code == 0, ran.err
    again(call, read_subject(tmp_path / "a.plan.json").command, words, tokenizer, tmp_path / "b.plan.json")
    assert (tmp_path / "b.plan.json").read_bytes() == (tmp_path / "a.plan.json").read_bytes()


def test_a_histogram(call, tmp_path):
    path = tmp_path / "h.json"
    path.write_text('{"histogram": [4, 4, 2, 2], "max_sequence_length": 4}')
    words = shlex.split(read_subject(path).command)
    assert words == ["nopad", "plan", "h.json", "--capacity", "4", "--algorithm", "auto", "--depth", "none"]
    assert call(*[str(path) if one == "h.json" else one for one in words[1:]]).code == 0


@pytest.mark.parametrize(("verb", "cases"), [(pack, CASES | PACKED), (plan, CASES | PLANNED)])
def test_every_option_that_changes_the_result_is_in_a_case(verb, cases):
    app = typer.Typer(add_completion=False)
    app.command()(verb)
    given = {str(one) for words in cases.values() for one in words}
    # INPUT stands for a file, which says what it holds by its name: `stdin_format` is for what comes without one
    other = {"out", "output", "as_json", "force", "ladder", "batch_size", "everything", "stdin_format", "save_lengths"}
    options = [one for one in typer.main.get_command(app).params if one.param_type_name == "option"]
    for one in options:
        flags = {*one.opts, *one.secondary_opts}
        if one.name == "chat":  # found by itself, and by --chat-option
            flags.add("--chat-option")
        assert one.name in other or flags & (given | {"-d", "-a"}), one.name


def test_the_plan_of_cut_records(call, data, tokenizer, tmp_path):
    words = filled(CASES["a label that was found"], data, tokenizer)
    ran = call("plan", *words, "-a", "auto", "-d", "none", "-o", tmp_path / "a.plan.json")
    assert "; 16 truncated, 40 tokens cut off\n" in ran
    made = Plan.load(tmp_path / "a.plan.json")
    assert made.notes == ("records: 16 truncated, 40 tokens cut off",)
    counts = json.loads(call("plan", *words, "--json"))["counts"]
    assert (counts["records"], counts["truncated"], counts["truncated_tokens"]) == (40, 16, 40)
    assert not made.problems()
    assert read_subject(tmp_path / "a.plan.json").notes == made.notes


@pytest.mark.parametrize(
    ("way", "said"), [("split", "; 16 split\n"), ("drop", "; 16 dropped as over-long, 136 tokens")]
)
def test_the_answer_counts_what_is_cut(call, data, tokenizer, way, said):
    words = filled(["texts.jsonl", "-t", "T", "-c", 8, "--over-long", way], data, tokenizer)
    assert said in call("plan", *words)


def test_several_capacities_count_what_is_cut(call, data, tokenizer):
    words = filled(["texts.jsonl", "-t", "T", "--over-long", "truncate", "--ladder", "4:1,8:1.5"], data, tokenizer)
    assert "\n16 truncated, 40 tokens cut off\n" in call("plan", *words)


def test_a_saved_plan_leaves_nothing_out(call, data, tokenizer, lengths, tmp_path):
    words = filled(["texts.jsonl", "-t", "T", "-c", 8], data, tokenizer)
    for given in (words, [lengths, "-c", 7]):
        ran = call("plan", *given, "-a", "auto", "-d", "none", "-o", tmp_path / "a.plan.json")
        assert ran.code == 2
        assert ran.error().endswith("; a plan that is saved leaves nothing out by itself")


def test_files_that_are_passed_over(call, data, tokenizer, tmp_path):
    source = tmp_path / "notes"
    source.mkdir()
    for name in ("a.txt", "b.txt", "y.pdf", "z.pdf", "Makefile", ".DS_Store"):
        (source / name).write_text("one two")
    said = "3 files passed over, of other kinds: Makefile, .pdf"
    assert said in call("plan", source, "-t", tokenizer, "-c", 8)
    found = json.loads(call("plan", source, "-t", tokenizer, "-c", 8, "--json"))
    assert found["passed_over"] == ["Makefile", "y.pdf", "z.pdf"]
    assert said in call("pack", source, "-t", tokenizer, "-c", 8, "-o", tmp_path / "out")
    ran = call("pack", source, "-t", tokenizer, "-c", 8, "-o", tmp_path / "more", "--json")
    assert json.loads(ran)["passed_over"] == ["Makefile", "y.pdf", "z.pdf"]
