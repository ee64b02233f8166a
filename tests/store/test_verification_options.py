"""Options in a manifest that bears its checksum: those that the dataset contradicts are problems, and no others."""

from __future__ import annotations

import shutil

import pytest
from hypothesis import given
from hypothesis import strategies as st

import nopad
from nopad.corpus import CorpusOptions, open_source

RECORDS = [[1, 2, 3], [4] * 20, [], [5, 6], [7] * 9, [8] * 8, [9] * 30]


def packed(folder, records, *, capacity=8, over_long="error", **more):
    options = CorpusOptions(capacity=capacity, over_long=over_long)
    nopad.pack_corpus(open_source(records), folder, options, packing=nopad.PackOptions(**more))
    return folder


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Datasets by how their over-long records were treated; "split" has several shards, "held" two halves."""
    folder = tmp_path_factory.mktemp("made")
    for way in ("truncate", "split", "drop"):
        packed(folder / way, RECORDS, over_long=way, shard_tokens=16)
    packed(folder / "error", [one[:8] for one in RECORDS], options={"align": 2}, algorithm="lpfhp")
    packed(folder / "held", RECORDS * 9, over_long="truncate", validation=0.2)
    return folder


@given(
    st.lists(st.lists(st.integers(0, 9), max_size=20), min_size=1, max_size=12).filter(any),
    st.sampled_from(["truncate", "split", "drop"]),
    st.integers(1, 40),
    st.sampled_from([0.0, 0.3]),
)
def test_a_sound_dataset_has_no_problem(tmp_path_factory, records, way, shard_tokens, validation):
    folder = tmp_path_factory.mktemp("sound")
    try:
        packed(folder, records, over_long=way, shard_tokens=shard_tokens, validation=validation)
    except nopad.errors.InputError:  # all were dropped, or too few are left
        return
    assert nopad.verify(folder) == []
    shutil.rmtree(folder)


@pytest.mark.parametrize("long", range(3))
def test_a_held_out_record_of_very_many_pieces(tmp_path, long):
    records = [[1] * (70_000 if number == long else 2) for number in range(3)]  # chunks have 65,536 pieces
    packed(tmp_path, records, capacity=1, over_long="split", validation=1e-9)
    assert nopad.verify(tmp_path) == []
    assert nopad.verify(tmp_path / "validation") == []


@pytest.mark.parametrize(
    ("name", "options", "told"),
    [
        ("truncate", {"over_long": "drop"}, "states truncated 3, which takes over_long 'truncate', and has 'drop'"),
        ("truncate", {"empty": "error"}, "states empty_skipped 1, which takes empty 'skip', and has 'error'"),
        ("split", {"over_long": "truncate"}, "states split 3, which takes over_long 'split', and has 'truncate'"),
        ("drop", {"over_long": "error"}, "states dropped 3, which takes over_long 'drop', and has 'error'"),
        ("held/train", {"over_long": "drop"}, "which takes over_long 'truncate', and has 'drop'"),
        ("error", {"over_long": "chop"}, "states an option that cannot be: over_long is 'chop'"),
        ("error", {"vocab_size": 0}, "states an option that cannot be: vocab_size is 0"),
        ("error", {"align": 4}, "states align 4, plan.json has 2"),
        ("split", {"shard_tokens": 32}, "states shard_tokens 32, by which shards are others"),
        ("split", {"shard_tokens": 4}, "states shard_tokens 4, by which shards are others"),
        ("split", {"shard_tokens": "16"}, "states shard_tokens '16', by which shards are others"),
    ],
)
def test_options_that_the_dataset_contradicts(made, edit_manifest, tmp_path, name, options, told):
    out = shutil.copytree(made / name, tmp_path / "out")
    assert nopad.verify(out) == []
    edit_manifest(out, options=lambda known: known | options)
    [problem] = [one for one in nopad.verify(out) if told in one]
    assert problem.startswith("nopad.json ")


@pytest.mark.parametrize(
    ("name", "counts", "told"),
    [
        ("split", {"split": 2}, "states split 2, the packs hold pieces of 3 records"),
        ("truncate", {"truncated": 5}, "states truncated 5, the packs hold 4 sequences of 8 tokens"),
        ("truncate", {"truncated_tokens": 0}, "states truncated 3 and truncated_tokens 0, which cannot both be"),
        ("error", {"stripped_tokens": 4}, "states stripped 0 and stripped_tokens 4, which cannot both be"),
        ("drop", {"dropped_tokens": 2}, "states dropped 3 and dropped_tokens 2, which cannot both be"),
    ],
)
def test_counts_that_the_dataset_contradicts(made, edit_manifest, tmp_path, name, counts, told):
    out = shutil.copytree(made / name, tmp_path / "out")
    edit_manifest(out, counts=lambda known: known | counts)
    assert any(told in one for one in nopad.verify(out))
