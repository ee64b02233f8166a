from __future__ import annotations

import shlex
from pathlib import Path

import numpy as np
import pytest

import nopad
from nopad.errors import CorruptError, FormatError, OptionError
from nopad.planning.comparison import DEPTHS
from nopad.report.subject import SHOWN_PACKS, SHOWN_SEQUENCES, read_subject


def test_a_histogram_is_shown_with_the_default_plan(subjects, histogram):
    found = subjects[0]
    assert (found.name, found.kind, found.plan.capacity, found.plan.algorithm) == (
        "some <lengths>",
        "histogram",
        8,
        "auto",
    )
    assert found.histogram == nopad.Histogram.load(histogram)
    assert found.padding_before == pytest.approx(1 - found.histogram.tokens / (8 * 120))
    assert found.padding_after == pytest.approx(1 - found.plan.efficiency)
    assert [(row["algorithm"], row["depth"]) for row in found.comparison] == [
        (name, depth) for name in ("auto", "lpfhp", "spfhp") for depth in DEPTHS
    ]
    assert found.facts == [("histogram, SHA-256", found.histogram.fingerprint)]
    assert found.outcome == ()
    for pack in found.packs:
        assert sum(length for length, _ in pack) <= 8
        assert {record for _, record in pack} == {""}


def test_a_plan_is_shown_as_it_is(subjects, plan):
    found = subjects[1]
    assert (found.name, found.kind) == ("deep", "plan")
    assert found.plan == nopad.Plan.load(plan)
    assert found.command == "nopad plan INPUT --capacity 16 --algorithm lpfhp --depth 3 --output deep.plan.json"
    sums, counts = found.fills()
    assert int(sums @ counts) == found.plan.tokens
    shown = {tuple(length for length, _ in pack) for pack in found.packs}
    assert shown <= {lengths for _, lengths in found.plan.strategies}


def test_a_dataset_is_shown_with_real_packs(subjects, dataset):
    found = subjects[2]
    packed = nopad.open_packed(dataset)
    assert (found.name, found.kind) == ("packed", "dataset")
    assert dict(found.outcome) == {
        "records read": 122,
        "sequences packed": 123,
        "records split": 1,
        "records skipped as empty": 1,
    }
    rows = [packed[at] for at in np.linspace(0, len(packed) - 1, min(SHOWN_PACKS, len(packed))).astype(int)]
    assert [[record for _, record in pack] for pack in found.packs] == [
        [f"record {record}" for record in row.seq_index.tolist()] for row in rows
    ]
    assert [[length for length, _ in pack] for pack in found.packs] == [row.seq_lengths.tolist() for row in rows]
    assert dict(found.facts)["source, SHA-256"] == packed.manifest.source["sha256"]
    assert dict(found.facts)["plan, SHA-256"] == packed.manifest.plan_sha256


def test_a_dataset_in_the_current_folder_has_a_name(subjects, dataset, monkeypatch):
    monkeypatch.chdir(dataset)
    found = read_subject(Path("."))
    assert (found.name, found.command) == (subjects[2].name, subjects[2].command)


def test_the_command_makes_the_dataset_again(subjects, dataset, rows, tmp_path):
    from nopad.cli import main

    words = shlex.split(subjects[2].command)
    assert words == shlex.split("nopad pack INPUT --out packed --capacity 16 --depth 6 --seed 3 --over-long split")
    again = [{"INPUT": str(rows), "packed": str(tmp_path / "again")}.get(word, word) for word in words]
    with pytest.raises(SystemExit) as stopped:
        main(again[1:])
    assert stopped.value.code == 0
    for shard in nopad.open_packed(dataset).manifest.shards:
        assert (tmp_path / "again" / shard.file).read_bytes() == (dataset / shard.file).read_bytes()


def test_every_option_that_is_not_the_default_is_in_the_command(tmp_path):
    rows = [{"ids": [1, 2, 0], "m": [1, 1, 0], "label": 3}, {"ids": [4, 5, 6], "m": [1, 1, 1], "label": 4}]
    source = nopad.open_source(rows, nopad.ReaderOptions(ids_field="ids", mask_field="m", carry=["label"]))
    options = nopad.CorpusOptions(
        capacity=8, over_long="drop", empty="error", on_bad_record="skip", vocab_size=9, special_tokens=False
    )
    packing = nopad.PackOptions(algorithm="best_fit", order="source", shard_tokens=5, options={"pack_multiple": 2})
    nopad.pack_corpus(source, tmp_path / "packed", options, packing=packing)
    words = read_subject(tmp_path / "packed").command
    for part in (
        "--over-long drop --empty error --on-bad-record skip",
        "--vocab-size 9",
        "--ids-field ids --carry label --mask-field m",
        "--algorithm best_fit",
        "--order source",
        "--shard-tokens 5",
        "--option pack_multiple=2",
        "--no-special-tokens",
    ):
        assert part in words


def test_the_answer_counts_rows(subject):
    takes = "takes" if subject.kind == "dataset" else "would take"
    assert subject.answer.startswith(
        f"An epoch {takes} {subject.plan.packs} rows instead of {subject.plan.sequences}: "
    )


def test_a_sample_stays_light(tmp_path):
    lengths = [1] * 200_000 + [900] * 20_000
    nopad.plan(lengths, 1000, algorithm="spfhp").save(tmp_path / "big.plan.json")
    found = read_subject(tmp_path / "big.plan.json")
    assert 0 < sum(map(len, found.packs)) <= SHOWN_SEQUENCES + 1000
    assert len(found.packs) <= SHOWN_PACKS


@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        (None, FormatError, "no such file or folder; give a histogram, a plan, or a packed dataset"),
        ("{}", FormatError, "is neither a plan ("),
        ('{"histogram": {"3": 4}}', OptionError, 'does not say for which capacity; add "max_sequence_length": N to it'),
        ('{"histogram": [0, 0]}', OptionError, "holds no sequences"),
    ],
)
def test_what_is_none_of_them(tmp_path, content, error, message):
    path = tmp_path / "a.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(error) as caught:
        read_subject(path)
    assert message in str(caught.value)


def test_a_plan_of_nothing(tmp_path):
    nopad.plan(np.zeros(0, np.int64), 8).save(tmp_path / "a.plan.json")
    with pytest.raises(OptionError, match="holds no sequences"):
        read_subject(tmp_path / "a.plan.json")


def test_a_folder_that_is_no_dataset(tmp_path):
    with pytest.raises(FormatError, match=r"is no packed dataset: it has no nopad.json"):
        read_subject(tmp_path)
    (tmp_path / ".work").mkdir()
    with pytest.raises(CorruptError, match="an unfinished packing job"):
        read_subject(tmp_path)


def test_a_split_of_named_sources(mixture):
    train, held = (read_subject(mixture / name) for name in ("train", "validation"))
    assert (train.name, held.name) == ("mixed/train", "mixed/validation")
    assert train.command == held.command
    assert train.command == (
        "nopad pack long=INPUT short=INPUT --out mixed --capacity 7 --over-long drop --validation 0.1"
    )
    counts = dict(train.outcome)
    assert counts["records read"] == 240
    assert counts["records held out"] == held.plan.sequences
    assert counts["records dropped as over-long"] == dict(held.outcome)["records dropped as over-long"] > 0
    named = {record.split(",")[0] for pack in train.packs for _, record in pack}
    assert named == {"long", "short"}
    numbers = [int(record.split()[-1]) for pack in train.packs for _, record in pack]
    assert max(numbers) < 120
