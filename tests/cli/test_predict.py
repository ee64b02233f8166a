"""`nopad predict` on small models in folders: tasks, columns, policies, exit codes, and what is refused."""

from __future__ import annotations

import json

import pyarrow.parquet as pq
import pytest
import torch
from tests.tasks.tiny import bert, llama, tokenizer, words

from nopad.tasks import CausalLM, Classification, Embedding, Regression, predict

pytestmark = pytest.mark.filterwarnings("ignore")
COUNT = 40


def texts():
    generator = torch.Generator().manual_seed(3)
    return [words(generator, n) for n in torch.randint(1, 20, (COUNT,), generator=generator).tolist()]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = {}

    def saved(kind):
        if kind not in made:
            task = {"classify": Classification, "embed": Embedding, "regress": Regression, "causal": CausalLM}[kind]
            task = task(tokenizer(), ["bad", "good"]) if kind == "classify" else task(tokenizer())
            build = llama if kind == "causal" else bert
            name = {"embed": "BertModel", "causal": "LlamaForCausalLM"}.get(kind)
            made[kind] = str(tmp_path_factory.mktemp(kind)), task, build(task, name)
            made[kind][2].save_pretrained(made[kind][0])
            tokenizer().save_pretrained(made[kind][0])
        return made[kind]

    return saved


@pytest.fixture
def given(tmp_path):
    path = tmp_path / "in.jsonl"
    path.write_text("".join(json.dumps({"id": n, "review": one}) + "\n" for n, one in enumerate(texts())))
    return str(path)


@pytest.mark.parametrize("kind", ["classify", "embed", "regress", "causal"])
def test_tasks(kind, folder, given, tmp_path, call):
    path, task, model = folder(kind)
    out = tmp_path / "out"
    options = ("--text", "review", "--keep", "number=id", "--batch-records", "7", "--part-records", "30")
    said = call("predict", given, "-o", str(out), "--task", kind, "-m", path, *options)
    assert said.code == 0, said.err
    assert "40 records; 40 sequences" in said
    assert "2 parts, Parquet" in said
    found = pq.read_table(out).to_pylist()
    assert [one.pop("record") for one in found] == [one.pop("number") for one in found] == list(range(COUNT))
    judged = predict(task, model, [{"text": one} for one in texts()])
    for one, other in zip(found, judged, strict=True):
        assert one.keys() == other.keys()
        for name, value in other.items():
            assert one[name] == (value if isinstance(value, str) else pytest.approx(value, rel=1e-5))
    again = call("predict", given, "-o", str(out), "--task", kind, "-m", path, *options)
    assert (again.code, str(again)) == (0, str(said))


def test_a_forced_job_that_was_interrupted_goes_on(folder, given, tmp_path, call, monkeypatch):
    """The old predictions stay until then, and the parts that were whole are not made again."""
    from nopad.tasks.predictor import Predictor

    path, *_ = folder("regress")
    out, real, runs = tmp_path / "out", Predictor.encode, []
    how = ["predict", given, "-o", out, "--task", "regress", "-m", path, "--text", "review", "--batch-records", "10"]
    how += ["--part-records", "10"]
    assert call(*how).code == 0
    before = {one.name: one.read_bytes() for one in out.iterdir()}

    def stops(self, *given, **options):
        runs.append(1)
        if len(runs) == 3:
            raise KeyboardInterrupt
        return real(self, *given, **options)

    monkeypatch.setattr(Predictor, "encode", stops)
    ran = call(*how, "--keep", "id", "--force")
    assert ran.code == 130
    assert f"{out} is as it was. Run the same command again: it goes on where it stopped" in ran.error()
    assert {one.name: one.read_bytes() for one in out.iterdir() if one.is_file()} == before
    assert call(*how, "--keep", "id", "--force").code == 0
    assert len(runs) == 3 + 2  # of four parts, two were whole
    assert pq.read_table(out).column_names == ["record", "id", "score"]
    assert not (out / ".replacing").exists()


def test_policies(folder, given, tmp_path, call):
    path, *_ = folder("regress")
    lengths = [len(tokenizer()(one)["input_ids"]) for one in texts()]
    many = sum(length > 9 for length in lengths)
    command = ("predict", given, "--task", "regress", "-m", path, "--text", "review", "--max-length", "9")
    refused = call(*command, "-o", str(tmp_path / "a"))
    assert refused.code == 2
    assert "and max_length is 9; raise it, or choose --over-long truncate or drop" in refused.error()
    said = call(*command, "-o", str(tmp_path / "b"), "--over-long", "truncate")
    assert f"40 records, {many} truncated to 9 tokens; 40 sequences" in said
    said = call(*command, "-o", str(tmp_path / "c"), "--set", "over_long=drop")
    assert f"40 records, {many} dropped; {40 - many} sequences" in said
    assert pq.read_table(tmp_path / "c")["score"].null_count == many
    whole = call(*command[:-2], "-o", str(tmp_path / "d"), "--over-long", "drop")
    assert "40 records; 40 sequences" in whole  # the model's positions are enough


def test_lower_precision(folder, given, tmp_path, call):
    path, *_ = folder("embed")
    command = ("predict", given, "--task", "embed", "-m", path, "--text", "review")
    assert call(*command, "-o", str(tmp_path / "exact")).code == 0
    said = call(*command, "-o", str(tmp_path / "rough"), "--precision", "bfloat16")
    assert said.code == 0, said.err
    assert "bfloat16: outputs of random tokens have a cosine of at least 0.99" in said
    exact, rough = (
        torch.tensor(pq.read_table(tmp_path / one)["embedding"].to_pylist(), dtype=torch.double)
        for one in ("exact", "rough")
    )
    assert (torch.nn.functional.cosine_similarity(exact, rough) > 0.999).all()
    assert not torch.allclose(exact, rough, atol=1e-6)
    again = call(*command, "-o", str(tmp_path / "rough"))  # the output of another precision is not gone on with
    assert again.code != 0


def test_csv_and_text(folder, tmp_path, call):
    path, *_ = folder("regress")
    (tmp_path / "a.csv").write_text("text,n\n1,2\n3,4\n")
    out = tmp_path / "out"
    options = ("--text", "n", "--keep", "text")  # what is not the task's text is a number
    assert call("predict", str(tmp_path / "a.csv"), "-o", str(out), "--task", "regress", "-m", path, *options).code == 0
    assert pq.read_table(out)["text"].to_pylist() == [1, 3]
    out, options = tmp_path / "other", ("--keep", "n")
    assert call("predict", str(tmp_path / "a.csv"), "-o", str(out), "--task", "regress", "-m", path, *options).code == 0
    assert pq.read_table(out)["n"].to_pylist() == [2, 4]
    (tmp_path / "a.txt").write_text("why\nnot\n")
    assert (
        call("predict", str(tmp_path / "a.txt"), "-o", str(tmp_path / "t"), "--task", "regress", "-m", path).code == 0
    )


@pytest.mark.parametrize(
    ("options", "code", "says"),
    [
        (["--task", "summarise"], 2, "there is no task 'summarise'; there are "),
        (["--set", "txt=review"], 2, "the task regress has no option 'txt'; did you mean text?"),
        (["--set", "review"], 2, "--set must be NAME=VALUE"),
        (["--text", "review", "--set", "text=x"], 2, "text is given twice, as --text and by --set"),
        (["--text", "title"], 2, "record 0 has no 'title', only id, review"),
        (["--labels", "a,b"], 2, "the task regress has no option 'labels'"),
        (["--labels", "1" * 5000], 2, "the task regress has no option 'labels'"),
        (["--keep", "=x"], 2, "--keep must be COLUMN, or NEW=COLUMN"),
        (["--text", "review", "--keep", "gold"], 2, "record 0 has no 'gold', only id, review"),
        (["--text", "review", "--keep", "score=id"], 2, "a prediction has one of this name"),
        (["--text", "review", "--capacity", "0"], 2, "capacity must be an integer from 1"),
        (["--text", "review", "--precision", "half"], 2, "precision"),
        (["--text", "review", "--device", "nowhere"], 2, "the model cannot be put on 'nowhere'"),
        (["--text", "review", "--over-long", "shorten"], 2, "over_long is 'shorten'"),
        (["-m", "no/such/folder"], 2, "no/such/folder"),
    ],
)
def test_what_is_refused(options, code, says, folder, given, tmp_path, call):
    path, *_ = folder("regress")
    command = {"--task": "regress", "-m": path}
    for name in ("--task", "-m"):
        if name in options:
            command.pop(name)
    words = [word for pair in command.items() for word in pair]
    out = call("predict", given, "-o", str(tmp_path / "out"), *words, *options)
    assert out.code == code, out.err
    assert says in out.error()
    assert not (tmp_path / "out").exists()


def test_whole_files_with_their_paths(folder, tmp_path, call):
    path, task, model = folder("embed")
    notes = tmp_path / "notes"
    (notes / "deep").mkdir(parents=True)
    contents = {"a.txt": "is it\nred ?", "deep/b.txt": "why not"}
    for name, content in contents.items():
        (notes / name).write_text(content)
    out = tmp_path / "vectors.parquet"
    how = ["predict", notes, "--task", "embed", "-m", path]
    ran = call(*how, "-o", out, "--text-unit", "file")
    assert ran.code == 0, ran.err
    found = pq.read_table(out).to_pylist()
    assert [row["path"] for row in found] == [str(notes / name) for name in contents]
    expected = predict(task, model, [{"text": content} for content in contents.values()])
    for row, one in zip(found, expected, strict=True):
        assert row["embedding"] == pytest.approx(list(one["embedding"]), abs=1e-6)
    lines = tmp_path / "lines"
    assert call(*how, "-o", lines, "--keep", "path=text").code == 0  # a name of yours stands
    assert [row["path"] for row in pq.read_table(lines).to_pylist()] == ["is it", "red ?", "why not"]
    (tmp_path / "a.jsonl").write_text('{"text": "why"}\n')
    ran = call("predict", tmp_path / "a.jsonl", *how[2:], "-o", tmp_path / "c", "--text-unit", "file")
    assert (ran.code, ran.error()) == (
        2,
        "--text-unit is of text files, and these records are jsonl; leave it out",
    )


def test_a_folder_of_notes(folder, tmp_path, call):
    """What is read of it, what is passed over, and what has changed since."""
    path, _, _ = folder("embed")
    notes = tmp_path / "notes"
    notes.mkdir()
    for name, text in {"a.md": "is it ?\nyes", "b.txt": "no", "y.pdf": "no", ".DS_Store": "no"}.items():
        (notes / name).write_text(text)
    how = [notes, "-o", tmp_path / "out", "--task", "embed", "-m", path]
    ran = call("predict", *how)
    assert "3 records (lines of 2 files; --text-unit file makes one of each); 3 sequences" in ran
    assert "1 file passed over, of other kinds: .pdf" in ran
    (notes / "c.txt").write_text("a dog")
    (notes / "b.txt").write_text("two dogs")
    said = f"{tmp_path / 'out'} already holds predictions of another input (new: c.txt; of another size: b.txt); "
    assert call("predict", *how).error() == f"{said}choose another folder, or start over with --force"
    assert "4 records (lines of 3 files" in call("predict", *how, "--force")
    by_file = call("predict", *how, "--force", "--text-unit", "file")
    assert "  3 records; 3 sequences" in by_file
