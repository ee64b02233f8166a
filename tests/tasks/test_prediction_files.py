"""Predictions in files: in input order, resumable after a kill at any moment to the same bytes, refused otherwise."""

from __future__ import annotations

import json
import random
import runpy
import shutil
import signal
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch
from tests.tasks.tiny import bert, tokenizer, words
from tests.warm import WarmParent

from nopad.errors import (
    CorruptError,
    InterruptedJobError,
    LengthError,
    OptionError,
    OutputBusyError,
    OutputExistsError,
    RecordError,
    ResumeError,
)
from nopad.store.starting_over import PREDICTIONS, replaced
from nopad.tasks import Embedding, Regression, SeveralLabels, predict, predict_files, prediction_files
from nopad.tasks.prediction_files import MANIFEST

COUNT = 95
SIZES = {"part_records": 20, "batch_records": 6}

# Runs one job, and says on stdout what it is about to do
CHILD = """
import os, sys, time
from pathlib import Path
sys.path.insert(0, {root!r})
import torch
torch.set_num_threads(1)
from tests.tasks.tiny import bert, tokenizer
from nopad.tasks import Regression, predict_files

def run(given, out, monitor=None):
    task = Regression(tokenizer(), max_length=20, over_long="drop")
    sizes = dict(part_records=20, batch_records=6)
    return predict_files(task, bert(task), given, out, keep={{"number": "id"}}, monitor=monitor, **sizes)

def warm(given):
    import tempfile
    with tempfile.TemporaryDirectory() as folder:
        run(given, Path(folder) / "out")

def tell(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())
    time.sleep(0.001)

class Telling:
    def stage(self, name, total, unit):
        tell("stage", name)
    def advance(self, units, tokens=0):
        tell("advance", units)

def told(name, real):
    def call(target, *rest):
        path = os.readlink(f"/proc/self/fd/{{target}}") if isinstance(target, int) else target
        tell(name, Path(path).name)
        real(target, *rest)
    return call

def main(given, out):
    os.fsync, os.replace = told("fsync", os.fsync), told("replace", os.replace)
    run(given, out, Telling())
"""


@pytest.fixture(scope="module")
def given(tmp_path_factory):
    generator = torch.Generator().manual_seed(2)
    path = tmp_path_factory.mktemp("given") / "in.jsonl"
    lengths = torch.randint(1, 25, (COUNT,), generator=generator).tolist()
    records = [{"id": 1000 + n, "text": words(generator, length)} for n, length in enumerate(lengths)]
    path.write_text("".join(json.dumps(one) + "\n" for one in records))
    return path


@pytest.fixture(scope="module")
def child(tmp_path_factory):
    path = tmp_path_factory.mktemp("child") / "child.py"
    path.write_text(CHILD.format(root=str(Path(__file__).parents[2])))
    return path


@pytest.fixture(scope="module")
def run(child):
    """The child's job, in this process and unhindered."""
    return runpy.run_path(str(child))["run"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory, given, run):
    out = tmp_path_factory.mktemp("whole") / "out"
    run(given, out)
    return out


def content(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def job(kind=Regression, **options):
    task = kind(tokenizer(), **options)
    return task, bert(task, "BertModel" if kind is Embedding else None)


def records_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_predictions_are_in_input_order(given, whole):
    table = pq.read_table(whole)
    assert table.column_names == ["record", "number", "score"]
    task, model = job(max_length=20, over_long="drop")
    judged = predict(task, model, records_of(given), batch_records=1)
    scores = [None if one is None else one["score"] for one in judged]
    assert table["record"].to_pylist() == list(range(COUNT))
    assert table["number"].to_pylist() == [1000 + n for n in range(COUNT)]
    for found, wanted in zip(table["score"].to_pylist(), scores, strict=True):
        assert found == (None if wanted is None else pytest.approx(wanted, abs=1e-12))
    manifest = json.loads((whole / MANIFEST).read_text())
    assert manifest["records"] == COUNT
    assert manifest["counts"] == {"dropped": scores.count(None)} == {"dropped": judged.counts["dropped"]}
    assert (manifest["sequences"], manifest["tokens"]) == (judged.sequences, judged.tokens)
    assert [part["records"] for part in manifest["parts"]] == [20, 20, 20, 20, 15]
    assert sorted(content(whole)) == [MANIFEST, *(f"part-0000{n}.parquet" for n in range(5))]


@pytest.mark.slow
def test_kill_9_at_many_moments(tmp_path, given, child, run, whole):
    wanted = content(whole)
    with WarmParent(child, given) as start:
        with start(given, tmp_path / "timed") as process:
            lines = process.stdout.read().splitlines()
        assert content(tmp_path / "timed") == wanted
        rng = random.Random(0)
        killed = 0
        for number in range(12):
            out = tmp_path / str(number)
            for _ in range(1 + number % 2):  # some are killed twice
                with start(given, out) as process:
                    at = rng.randrange(2, len(lines) - 2) // (2 if number % 2 else 1)
                    for _ in range(at):
                        process.stdout.readline()
                    time.sleep(rng.uniform(0, 0.002))
                    process.send_signal(signal.SIGKILL)
                killed += process.returncode == -signal.SIGKILL
                for part in out.glob("part-*.parquet"):
                    assert pq.read_table(part).num_rows in (20, 15)
            run(given, out)
            assert content(out) == wanted
            shutil.rmtree(out)
    assert killed >= 15


def test_what_was_done_is_not_done_again(tmp_path, given, run, whole):
    out = tmp_path / "out"
    seen = []

    class Stop:
        def stage(self, name, total, unit):
            seen.append((name, total))

        def advance(self, units, tokens=0):
            seen.append(units)
            if sum(one for one in seen if isinstance(one, int)) > 50:
                raise KeyboardInterrupt

    with pytest.raises(BaseException, match="run the same command again to go on"):
        run(given, out, Stop())
    assert sorted(path.name for path in out.glob("part-*")) == ["part-00000.parquet", "part-00001.parquet"]
    seen.clear()
    before = (out / "part-00000.parquet").stat().st_mtime_ns
    Stop.advance = lambda self, units, tokens=0: seen.append(units)
    run(given, out, Stop())
    assert sum(one for one in seen if isinstance(one, int)) == COUNT - 40
    assert ("predicting", COUNT - 40) in seen
    assert (out / "part-00000.parquet").stat().st_mtime_ns == before
    assert content(out) == content(whole)


def test_a_job_is_refused_while_its_predictions_are_replaced(tmp_path, given, run, whole):
    """Its next part was written over one of the new predictions."""
    out = tmp_path / "out"

    class Stop:
        def stage(self, name, total, unit):
            pass

        def advance(self, units, tokens=0):
            raise KeyboardInterrupt

    with pytest.raises(InterruptedJobError):
        run(given, out, Stop())

    def make(place):
        if place == out:
            raise ResumeError("other settings")
        with pytest.raises(OutputBusyError, match="another process is writing to"):
            run(given, out)
        shutil.copytree(whole, place, dirs_exist_ok=True)

    replaced(out, PREDICTIONS, make)
    assert content(out) == content(whole)


def stopped(given, out, task, model, **options):
    """A job that was interrupted after its first part."""

    class Stop:
        def stage(self, name, total, unit):
            pass

        def advance(self, units, tokens=0):
            if (out / "part-00000.parquet").exists():
                raise KeyboardInterrupt

    with pytest.raises(BaseException, match="run the same command again"):
        predict_files(task, model, given, out, **{**SIZES, **options}, monitor=Stop())


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"part_records": 21}, "part_records was 20, now 21"),
        ({"batch_records": 7}, "batch_records was 6, now 7"),
        ({"capacity": 100}, "capacity was 256, now 100"),
        ({"rows": 2}, "rows was 16, now 2"),
        ({"keep": {"id": "id"}}, "keep was {}, now {'id': 'id'}"),
    ],
)
def test_other_settings_are_refused_by_name(tmp_path, given, options, says):
    task, model = job()
    stopped(given, tmp_path / "out", task, model)
    with pytest.raises(ResumeError, match=says):
        predict_files(task, model, given, tmp_path / "out", **{**SIZES, **options})


def test_another_task_model_or_input_is_refused_by_name(tmp_path, given):
    task, model = job()
    out = tmp_path / "out"
    stopped(given, out, task, model)
    with pytest.raises(ResumeError, match="max_length was none, now 30"):
        predict_files(job(max_length=30)[0], model, given, out, **SIZES)
    with pytest.raises(ResumeError, match=r"task was regress, now tag; .*names was none, now"):
        predict_files(*job(SeveralLabels, labels=2), given, out, **SIZES)
    with torch.no_grad():
        model.classifier.bias += 1e-9
    with pytest.raises(ResumeError, match=r"model was ........…, now"):
        predict_files(task, model, given, out, **SIZES)
    task, model = job()
    other = tmp_path / "in.jsonl"
    text = given.read_text()
    other.write_text(text.replace("1001", "1009"))
    with pytest.raises(ResumeError, match="the source changed since"):
        predict_files(task, model, other, out, **SIZES)
    other.write_text(text + '{"text": "why"}\n')
    with pytest.raises(ResumeError, match=r"in.jsonl changed its size"):
        predict_files(task, model, other, out, **SIZES)
    assert predict_files(task, model, given, out, **SIZES).records == COUNT


def test_a_finished_folder_is_proven_and_reused(tmp_path, given, run, whole):
    out = tmp_path / "out"
    shutil.copytree(whole, out)
    assert run(given, out).records == COUNT
    assert content(out) == content(whole)
    task, model = job(max_length=20, over_long="truncate")
    with pytest.raises(OutputExistsError, match="over_long was drop, now truncate"):
        predict_files(task, model, given, out, keep={"number": "id"}, **SIZES)
    other = tmp_path / "in.jsonl"
    other.write_text(given.read_text().replace("1001", "1009"))
    with pytest.raises(OutputExistsError, match="predictions of another input"):
        run(other, out)
    with open(out / "part-00001.parquet", "ab") as file:
        file.write(b"x")
    with pytest.raises(CorruptError, match=r"part-00001.parquet is missing or damaged"):
        run(given, out)
    (tmp_path / "else").mkdir()
    (tmp_path / "else" / "mine.txt").write_text("mine")
    with pytest.raises(OutputExistsError, match="already holds something else"):
        run(given, tmp_path / "else")


def test_a_part_that_was_damaged_meanwhile_is_made_again(tmp_path, given, run, whole):
    out = tmp_path / "out"
    task, model = job(max_length=20, over_long="drop")
    stopped(given, out, task, model, keep={"number": "id"})
    (out / "part-00000.parquet").write_bytes(b"PAR1")
    run(given, out)
    assert content(out) == content(whole)


@pytest.mark.parametrize("count", [0, 1])
def test_few_records(tmp_path, count):
    given = tmp_path / "in.jsonl"
    given.write_text('{"text": "why"}\n' * count)
    task, model = job()
    made = predict_files(task, model, given, tmp_path / "out")
    assert (made.records, len(made.parts), made.sequences) == (count, count, count)
    assert sum(pq.read_table(tmp_path / "out" / part).num_rows for part in made.parts) == count
    assert predict_files(task, model, given, tmp_path / "out") == made


def test_types_that_only_later_parts_have(tmp_path):
    """Lists that are empty in the first part, and whole parts of records that were left out."""
    task = SeveralLabels(tokenizer(), ["a", "b"], max_length=6, over_long="drop")
    model = bert(task)
    with torch.no_grad():
        model.classifier.weight.zero_()
        model.classifier.bias.fill_(-1)
    long, short = {"text": "one two three four five six", "note": None}, {"text": "why", "note": "x"}
    records = [{"text": "why", "note": None}] * 2 + [long] * 2 + [short] * 2
    with pytest.raises(OptionError, match=r"a prediction has one of this name; .*input_labels=labels"):
        predict_files(task, model, [{"text": "why", "labels": 3}], tmp_path / "no", keep={"labels": "labels"})
    made = predict_files(task, model, records, tmp_path / "out", part_records=2, keep={"note": "note"})
    tables = [pq.read_table(tmp_path / "out" / part) for part in made.parts]
    assert len({str(table.schema) for table in tables}) == 1
    table = pq.read_table(tmp_path / "out")
    assert table["labels"].to_pylist() == [[], [], None, None, [], []]
    assert table["note"].to_pylist() == [None] * 4 + ["x"] * 2
    assert [one and len(one) for one in table["probabilities"].to_pylist()] == [2, 2, None, None, 2, 2]
    assert made.counts == {"dropped": 2}


@pytest.mark.parametrize("kind", ["jsonl", "csv"])
def test_stopped_while_parts_get_the_types_of_later_ones(tmp_path, monkeypatch, kind):
    """At every write, also of the second ones: the bytes are those of a job that was not stopped."""
    given = tmp_path / f"in.{kind}"
    values = [None, None, "x", "y"] if kind == "jsonl" else ["1", "2", "1.10", "1.1"]
    records = [{"text": "why", "note": one} for one in values for _ in range(2)]
    lines = [json.dumps(one) for one in records] if kind == "jsonl" else [f"why,{one['note']}" for one in records]
    given.write_text("\n".join(lines if kind == "jsonl" else ["text,note", *lines]))
    task = SeveralLabels(tokenizer(), ["a", "b"])
    model = bert(task)
    sizes = {"part_records": 2, "keep": {"note": "note"}}
    predict_files(task, model, given, tmp_path / "whole", **sizes)
    assert pq.read_table(tmp_path / "whole")["note"].to_pylist() == [one["note"] for one in records]
    real = prediction_files.write_part
    for at in range(1, 10):
        writes = []

        def stopping(path, table, at=at, writes=writes):
            real(path, table)
            writes.append(path)
            if len(writes) == at:
                raise KeyboardInterrupt

        monkeypatch.setattr(prediction_files, "write_part", stopping)
        out = tmp_path / f"stopped-{at}"
        stopped = False
        try:
            predict_files(task, model, given, out, **sizes)
        except InterruptedJobError:
            stopped = True
        monkeypatch.undo()
        predict_files(task, model, given, out, **sizes)
        assert content(out) == content(tmp_path / "whole"), at
        if not stopped:
            break
    assert at == {"jsonl": 7, "csv": 8}[kind]  # four parts, two or three of them again, and once without a stop


def test_values_of_no_common_type_are_refused_where_they_meet(tmp_path):
    task, model = job()
    mixed = [{"text": "why", "id": 1}, {"text": "why", "id": "x"}]
    for sizes in ({}, {"part_records": 1}, {"batch_records": 1}):
        with pytest.raises(RecordError, match=r"make (them|its values) alike, or do not keep it"):
            predict_files(task, model, mixed, tmp_path / str(sizes), keep={"id": "id"}, **sizes)
    with pytest.raises(RecordError, match="record 1 has no 'id', only text"):
        predict_files(task, model, [mixed[0], {"text": "why"}], tmp_path / "x", keep={"id": "id"})


@pytest.mark.parametrize("value", [{}, 2**70, object()])
def test_values_that_parquet_does_not_have_are_refused(tmp_path, value):
    with pytest.raises(RecordError, match="do not keep"):
        predict_files(*job(), [{"text": "why", "x": value}], tmp_path / "out", keep={"x": "x"})
    assert not (tmp_path / "out").exists()


def test_vectors_are_stored_in_single_precision(tmp_path, given):
    predict_files(*job(Embedding), given, tmp_path / "out", **SIZES)
    column = pq.read_table(tmp_path / "out")["embedding"]
    assert str(column.type.value_type) == "float"
    assert {len(one) for one in column.to_pylist()} == {32}


def test_bad_input_leaves_nothing_behind(tmp_path, given):
    task, model = job(max_length=8)
    with pytest.raises(LengthError, match=r"record \d+ has"):
        predict_files(task, model, given, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    with pytest.raises(OptionError, match="an iterator can be read once"):
        predict_files(task, model, iter([{"text": "why"}]), tmp_path / "out")
    with pytest.raises(OptionError, match=r"lies in .* which is read"):
        predict_files(task, model, given.parent, given.parent / "out")
    (tmp_path / "in.jsonl").write_bytes(b'{"text": "\xff"}\n')
    with pytest.raises(RecordError, match=r"in.jsonl, line 1: not UTF-8"):
        predict_files(task, model, tmp_path / "in.jsonl", tmp_path / "out")
    assert not (tmp_path / "out").exists()
