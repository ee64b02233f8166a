from __future__ import annotations

import subprocess
import sys
import threading

import numpy as np
import pytest

from nopad.errors import OptionError, SourceError
from nopad.loading.sources import open_tokens
from nopad.loading.sources import source as module
from nopad.loading.sources.arrays import memory_tokens
from nopad.sequences import Sequences


def of(lists, dtype=np.int32, **values):
    ids = np.array([i for one in lists for i in one], dtype)
    lengths = np.array([len(one) for one in lists], np.int32)
    return memory_tokens(
        Sequences(seq_lengths=lengths, tokens={"input_ids": ids}, values={n: np.array(v) for n, v in values.items()})
    )


THREE = [[7, 8, 9], [5], [1, 2]]


@pytest.mark.parametrize("number", [-1, 3, 2**40])
def test_numbers_out_of_range(refuses, number):
    with refuses(OptionError, f"sequence {number} of memory; there are 0 to 2"):
        of(THREE).gather([0, number])


@pytest.mark.parametrize("numbers", [[0.0], [[0]], [True], ["a"], 1])
def test_numbers_that_are_no_list_of_integers(numbers):
    with pytest.raises(OptionError, match="numbers of sequences are integers"):
        of(THREE).gather(numbers)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.uint64])
def test_numbers_of_any_integer_type(dtype):
    assert of(THREE).gather(np.array([2, 0], dtype)).tokens["input_ids"].tolist() == [1, 2, 7, 8, 9]


def test_lengths_cannot_be_changed_by_accident():
    source = of(THREE)
    with pytest.raises(ValueError, match="read-only"):
        source.seq_lengths[0] = 5
    assert source.seq_lengths is source.seq_lengths


def test_a_fingerprint_is_of_the_content_however_it_is_stored():
    same = {of(THREE, dtype).fingerprint for dtype in (np.uint16, np.int32, np.int64)}
    assert len(same) == 1
    assert of(THREE, label=[1, 2, 3]).fingerprint == of(THREE, np.uint8, label=np.array([1, 2, 3], np.int8)).fingerprint


@pytest.mark.parametrize(
    "other",
    [
        of([[7, 8, 9], [5], [1, 3]]),
        of([[7, 8, 9], [5, 1], [2]]),
        of([[5], [7, 8, 9], [1, 2]]),
        of([*THREE, [4]]),
        of(THREE, label=[1, 2, 3]),
        of(THREE, label=[1.0, 2.0, 3.0]),
        of(THREE, lable=[1, 2, 3]),
        of(THREE, label=[1, 2, 4]),
    ],
)
def test_other_content_has_another_fingerprint(other):
    assert other.fingerprint not in (of(THREE).fingerprint, of(THREE, label=[3, 2, 1]).fingerprint)


def test_the_fingerprint_of_a_large_source_samples_it(monkeypatch):
    monkeypatch.setattr(module, "_SAMPLED_TOKENS", 5000)
    monkeypatch.setattr(module, "_SAMPLED", 64)
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 100, 2000).astype(np.int32)
    numbers = module._spread(lengths)
    assert {0, 1999} <= set(numbers.tolist())
    assert np.all(np.diff(numbers) > 0)
    assert lengths[numbers].sum() <= 5000
    assert np.diff(numbers).max() <= 3 * 2000 / 64  # evenly, as far as the budget goes
    whole = np.full(64, 78, np.int32)  # all that are looked at fit
    assert module._spread(np.repeat(whole, 10)).size == 64
    long = np.full(10, 6000, np.int32)  # the first and the last always count
    assert module._spread(long).tolist() == [0, 9]


def test_a_sampled_fingerprint_sees_every_length(monkeypatch):
    monkeypatch.setattr(module, "_SAMPLED_TOKENS", 20)
    lists = [[1] * 3 for _ in range(50)]
    before = of(lists).fingerprint
    lists[24], lists[25] = [1] * 2, [1] * 4
    assert of(lists).fingerprint != before


def test_padding_is_refused_and_the_mask_dropped(refuses):
    lengths, ids = np.array([3, 1, 2], np.int32), np.arange(6)

    def masked(mask):
        tokens = {"input_ids": ids, "attention_mask": np.array(mask)}
        return memory_tokens(Sequences(seq_lengths=lengths, tokens=tokens))

    assert masked([1] * 6).gather([2, 0]).tokens.keys() == {"input_ids"}
    source = masked([1, 1, 1, 1, 1, 0])
    assert source.gather([1, 0]).tokens["input_ids"].tolist() == [3, 0, 1, 2]
    message = (
        "memory: sequence 2 is padded: its attention_mask is not all 1, and padding would be trained on as content; "
        "cut it off before"
    )
    for numbers in ([2], [0, 2, 1], [2, 2]):
        with refuses(SourceError, message):
            source.gather(numbers)
    tokens = {"input_ids": np.arange(2), "attention_mask": np.array([1, 0])}
    skipped = memory_tokens(Sequences(seq_lengths=np.array([0, 2], np.int32), tokens=tokens), empty="skip")
    with refuses(SourceError, message.replace("sequence 2", "sequence 0")):
        skipped.gather([0])


def test_threads_share_a_source(tmp_path, make_records, write_arrays):
    records = make_records(200)
    source = open_tokens(write_arrays(tmp_path / "a", records))
    wrong = []

    def read(seed):
        rng = np.random.default_rng(seed)
        for _ in range(200):
            numbers = rng.integers(0, 200, 20)
            expected = [i for number in numbers.tolist() for i in records[number]["input_ids"]]
            if source.gather(numbers).tokens["input_ids"].tolist() != expected:
                wrong.append(numbers)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_no_framework_is_imported():
    code = (
        "import sys, nopad.loading.sources as s; s.open_tokens([[1, 2], [3]]).gather([1]);"
        "print({'torch', 'datasets', 'transformers'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
