"""`--pretrain bert`: documents of the command line as pairs, in pack, plan, verify; and `nopad study pretraining`."""

from __future__ import annotations

import json

import numpy as np
import pytest

import nopad


@pytest.fixture
def documents(tmp_path):
    path = tmp_path / "docs.txt"
    texts = ["  ".join(f"Number {n} of {m}." for n in range(2 + m % 9)) for m in range(40)]
    path.write_text("\n\n".join(texts))
    return path


PAIRS = ("--pretrain", "bert", "--text-unit", "paragraph")


def test_pack_plan_and_verify(call, tmp_path, documents):
    ran = call("pack", documents, "-o", tmp_path / "out", "-c", 64, *PAIRS, "-P", "copies=2", "-P", "static=true")
    assert (ran.code, ran.err) == (0, "")
    assert "of 40 documents, " in ran
    assert "columns that are carried: token_type_ids, labels, next_sentence_label" in ran
    ran = call("verify", tmp_path / "out", "--source", documents)
    assert ran.code == 0, ran
    assert "every token compared with its source" in ran
    dataset = nopad.open_packed(tmp_path / "out")
    rows = call("plan", documents, "-c", 64, *PAIRS, "-P", "copies=2", "-a", "spfhp", "-d", "none", "--json")
    (row,) = json.loads(rows)["plans"]
    assert row["sequences"] == dataset.manifest.sequences
    labels = np.concatenate([row["labels"] for row in dataset])
    assert 0.08 < (labels >= 0).mean() < 0.2
    again = call("pack", documents, "-o", tmp_path / "again", "-c", 64, *PAIRS, "--seed", 1)
    assert "maskable" in again


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-P", "copies=2"], "--pretrain-option copies is of --pretrain bert; give both"),
        (["--pretrain", "bert", "-P", "copy=2"], "--pretrain bert has no option 'copy'; did you mean copies?"),
        (["--pretrain", "bert", "-P", "seed=2"], "--pretrain-option seed: give it as --seed"),
        ([*PAIRS, "-P", "max_length=65"], "pairs of up to 65 tokens do not fit into packs of 64"),
        ([*PAIRS, "--no-special-tokens"], "--no-special-tokens: pairs are made with [CLS] and [SEP]"),
        ([*PAIRS, "--vocab-size", "9"], "--vocab-size is for ready-made ids"),
        ([*PAIRS, "--validation", "10%"], "so none of them can be held out"),
        ([*PAIRS, "-P", "rate=0.3"], "of masks that are drawn now (static=True)"),
        (["--pretrain", "bert"], "docs.txt: 1 document with a text, and a random next sentence comes from"),
        ([*PAIRS, "-P", "max_length=8"], "a sentence of "),
    ],
)
def test_what_is_refused_leaves_nothing_behind(call, tmp_path, documents, arguments, message):
    out = tmp_path / "out"
    ran = call("pack", documents, "-o", out, "-c", 64, *arguments)
    assert ran.code == 2
    assert message in ran.error()
    assert not out.exists()


def test_lengths_and_histograms_have_no_pairs(call, tmp_path):
    np.save(tmp_path / "lengths.npy", np.array([3, 4]))
    (tmp_path / "h.json").write_text('{"histogram": [1, 2], "max_sequence_length": 2}')
    for name, what in (("lengths.npy", "holds lengths"), ("h.json", "is a histogram")):
        ran = call("plan", tmp_path / name, "-c", 64, "--pretrain", "bert")
        assert ran.code == 2
        assert f"--pretrain makes pairs of documents, and {tmp_path / name} {what}; give the texts" in ran.error()


def test_a_vocabulary_without_the_tokens(call, tmp_path, documents, words):
    ran = call("pack", documents, "-o", tmp_path / "out", "-c", 64, *PAIRS, "--tokenizer", words)
    assert ran.code == 2
    assert "has no [MASK], and pairs for pre-training are made with [CLS], [SEP] and [MASK]" in ran.error()


def test_study(call, documents):
    ran = call("study", "pretraining", documents, "--text-unit", "paragraph", "--json", "-l", 128, "-l", 64)
    assert (ran.code, ran.err) == (0, "")
    found = json.loads(ran)
    assert [one["capacity"] for one in found["lengths"]] == [128, 64]
    first = found["lengths"][0]
    assert (first["published_theoretical"], first["published_factor"], first["predictions"]) == (1.2, 1.17, 20)
    assert sum(first["histogram"].values()) == first["sequences"]
    assert found["lengths"][1]["published_factor"] is None
    ran = call("study", "pretraining", documents, "--text-unit", "paragraph")
    assert "40 documents" in ran
    assert "The paper's figures are of Wikipedia." in ran
    assert "nopad study pretraining" in call("study")
