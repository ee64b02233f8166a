from __future__ import annotations

import json


def problems(call, *arguments):
    """The problems found, by --json and by the printed lines, which must be the same."""
    ran = call("verify", *arguments, "--json")
    found = json.loads(ran)
    assert list(found) == ["ok", "problems"]
    assert found["ok"] is not bool(found["problems"])
    assert ran.code == (0 if found["ok"] else 1)
    assert ran.err == ""
    printed = call("verify", *arguments)
    assert printed.code == ran.code
    if found["problems"]:
        assert printed == "".join(f"✗ {problem}\n" for problem in found["problems"])
    return found["problems"]


def test_ok(run, packed):
    ran = run("verify", packed)
    assert (ran.code, ran.err) == (0, "")
    assert ran == (
        f"✓ {packed}: 3 sequences, each in exactly one of 2 packs, none above capacity or depth, all checksums true\n"
    )
    ran = run("verify", packed, "--json")
    assert (ran.code, json.loads(ran)) == (0, {"ok": True, "problems": []})


def test_with_the_source(call, packed, ids):
    ran = call("verify", packed, "--source", ids)
    assert ran.code == 0
    assert "every token compared with its source" in ran


def test_with_a_changed_source(call, packed, ids):
    ids.write_text(ids.read_text().replace("9", "6"))
    assert problems(call, packed, "--source", ids) == [
        "record 0, piece from token 0: not the tokens that this source gives"
    ]


def test_a_plan_file(call, histogram, tmp_path):
    path = tmp_path / "a.plan.json"
    call("plan", histogram, "-a", "lpfhp", "-d", "none", "-o", path)
    assert problems(call, path) == []
    proven = (
        "3 packs for 5 sequences, within capacity and depth; lower bound 3, proven again by tokens: so none is better"
    )
    assert proven in call("verify", path)
    whole = path.read_text()
    path.write_text(whole.replace('"proof": "tokens"', '"proof": "certificate"'))
    assert problems(call, path) == ["the proof of the lower bound is stated as 'certificate', it is 'tokens'"]
    path.write_text(whole)
    path.write_text(path.read_text().replace('"packs": 3,', '"packs": 4,', 1))
    assert problems(call, path) == [f"{path} states 4 packs, its strategies give 3"]


def test_a_damaged_shard(call, packed):
    shard = packed / "shards" / "00000-of-00001.parquet"
    raw = bytearray(shard.read_bytes())
    raw[20] ^= 1
    shard.write_bytes(raw)
    [problem] = problems(call, packed)
    assert problem.startswith("shards/00000-of-00001.parquet is damaged: SHA-256 ")
    shard.write_bytes(raw[:-1])
    [problem] = problems(call, packed)
    assert problem == f"shards/00000-of-00001.parquet has {len(raw) - 1:,} bytes, expected {len(raw):,}"
    shard.unlink()
    assert problems(call, packed) == ["shards/00000-of-00001.parquet is missing"]


def test_a_file_too_many(call, packed):
    (packed / "shards" / "notes.txt").write_text("mine")
    assert problems(call, packed) == ["shards/notes.txt does not belong to this dataset"]


def test_a_damaged_manifest(call, packed):
    manifest = packed / "nopad.json"
    text = manifest.read_text()
    manifest.write_text(text.replace('"sequences": 3', '"sequences": 4', 1))
    [problem] = problems(call, packed)
    assert problem.startswith(f"{manifest} is damaged: its content does not have the checksum ")
    manifest.write_text(text[:-20])
    [problem] = problems(call, packed)
    assert problem.startswith(f"{manifest} is damaged: ")
    manifest.write_text(text.replace('"format_version": 5', '"format_version": 4'))
    assert problems(call, packed) == [f"{manifest} has format version 4; this nopad reads 5: pack the source again"]


def test_a_source_needs_a_dataset(call, histogram, ids, tmp_path):
    """Wrong use, and no failed check: a plan and a histogram have no tokens."""
    plan = tmp_path / "x.plan.json"
    assert call("plan", histogram, "-c", "8", "-o", plan).code == 0
    for file in (plan, histogram):
        ran = call("verify", file, "--source", ids)
        assert ran.code == 2
        assert f"--source is compared with the tokens of a dataset, and {file} is a file" in ran.error()


def test_a_damaged_plan(call, packed):
    plan = packed / "plan.json"
    plan.write_text(plan.read_text().replace('"count": 1, "lengths": [3, 1]', '"count": 1, "lengths": [3, 2]'))
    [problem] = problems(call, packed)
    assert problem.startswith(f"{plan} states ")


def test_no_dataset(call, tmp_path, histogram):
    (tmp_path / "empty[bold]").mkdir()
    assert problems(call, tmp_path / "empty[bold]") == [
        f"{tmp_path / 'empty[bold]'} is no packed dataset: it has no nopad.json"
    ]
    assert problems(call, histogram) == [f'{histogram} is no plan file: it lacks "format": "nopad.plan"']


def test_the_source_alone_says_that_it_is_compared_with(call, packed):
    ran = call("verify", packed, "--deep")
    assert ran.code == 2
    assert "--deep" in ran.err


def test_wrong_use_is_told_from_a_failed_check(call, packed, jsonl, words, tmp_path):
    ran = call("verify", tmp_path / "nowhere")
    assert (ran.code, ran) == (2, "")
    assert ran.error().endswith("nowhere does not exist; give a packed dataset folder or a plan file")
    ran = call("verify", packed, "--source", tmp_path / "nowhere.jsonl")
    assert (ran.code, ran) == (2, "")
    out = tmp_path / "out"
    assert call("pack", jsonl, "-o", out, "-c", 8, "-t", words).code == 0
    ran = call("verify", out, "--source", jsonl, "-t", "nowhere.json")
    assert (ran.code, ran) == (2, "")
    assert "nowhere.json: no such file or folder" in ran.error()


def test_another_tokenizer_is_a_problem(call, jsonl, words, tmp_path):
    out = tmp_path / "out"
    assert call("pack", jsonl, "-o", out, "-c", 8, "-t", words).code == 0
    other = tmp_path / "other.json"
    other.write_text(words.read_text().replace('"w49"', '"other"'))
    [problem] = problems(call, out, "-s", jsonl, "-t", other)
    assert problem.startswith("packed with another tokenizer than ")


def test_several_paths(call, packed, tmp_path, ids):
    other = tmp_path / "other"
    assert call("pack", ids, "-o", other, "-c", 8).code == 0
    ran = call("verify", packed, other)
    assert ran.code == 0
    assert [line.split(":")[0] for line in ran.splitlines()] == [f"✓ {packed}", f"✓ {other}"]
    (other / "shards" / "more").write_text("")
    ran = call("verify", packed, other)
    assert (ran.code, ran.splitlines()[-1].split(":")[0]) == (1, f"✓ {packed}")
    (problem,) = json.loads(call("verify", packed, other, "--json"))["problems"]
    assert problem.startswith(f"{other}: ")
    ran = call("verify", packed, other, "-s", ids)
    assert (ran.code, ran.error()) == (
        2,
        "--source is what one dataset was packed from, and there are 2; give one PATH",
    )
    assert call("verify", packed, tmp_path / "no").code == 2
