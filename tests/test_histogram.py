from __future__ import annotations

import hashlib
import json
import struct
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nopad.histogram
from nopad import Histogram
from nopad.errors import FormatError, LengthError, StorageError
from nopad.histogram import as_lengths, exact_dot, exact_sum, read_histogram

LENGTHS = st.lists(st.integers(1, 120), max_size=60)
INT_TYPES = ["i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", ">i2", ">u4", ">i8"]
EMPTY = Histogram.from_counts({})


@given(LENGTHS, st.sampled_from(INT_TYPES))
def test_counts_every_int_dtype(lengths, dtype):
    histogram = Histogram.from_lengths(np.array(lengths, dtype=dtype))
    assert histogram.to_dict() == Counter(lengths)
    assert (histogram.lengths.dtype, histogram.counts.dtype) == (np.int64, np.int64)
    assert histogram.lengths.tolist() == sorted(set(lengths))
    assert (histogram.sequences, histogram.tokens) == (len(lengths), sum(lengths))
    assert histogram.max_length == max(lengths, default=0)


@given(st.lists(LENGTHS, max_size=5), st.integers(1, 9), st.integers(1, 130))
def test_chunking_changes_nothing(chunks, chunk, dense):
    whole = [length for part in chunks for length in part]
    with pytest.MonkeyPatch.context() as patch:  # cut inside chunks; lengths above `dense` take the sparse path
        patch.setattr(nopad.histogram, "_CHUNK", chunk)
        patch.setattr(nopad.histogram, "_DENSE", dense)
        assert Histogram.from_chunks(iter(chunks)).to_dict() == Counter(whole)
    assert Histogram.from_chunks(chunks) == Histogram.from_lengths(whole)


@given(LENGTHS, LENGTHS)
def test_merging_is_counting_both(a, b):
    one, other = Histogram.from_lengths(a), Histogram.from_lengths(b)
    assert one + other == other + one == Histogram.from_lengths(a + b)
    assert one + EMPTY == one


def test_merging_takes_only_histograms():
    with pytest.raises(TypeError, match="unsupported operand"):
        EMPTY + {1: 1}


def test_memory_mapped_lengths(tmp_path):
    lengths = np.random.default_rng(0).integers(1, 513, 600_000).astype(np.uint16)  # more than one chunk
    np.save(tmp_path / "lengths.npy", lengths)
    mapped = np.load(tmp_path / "lengths.npy", mmap_mode="r")
    assert Histogram.from_lengths(mapped).to_dict() == Counter(lengths.tolist())


def test_strided_and_generated_input():
    assert Histogram.from_lengths(np.arange(1, 11)[::3]).to_dict() == {1: 1, 4: 1, 7: 1, 10: 1}
    assert Histogram.from_chunks(np.full(3, n) for n in (2, 5, 2)).to_dict() == {2: 6, 5: 3}


def test_lengths_above_the_dense_table():
    edge = 1 << 22
    lengths = [edge + 1, 5, edge, edge + 1, 2**31 - 1, edge - 1]
    assert Histogram.from_lengths(lengths).to_dict() == Counter(lengths)
    assert Histogram.from_chunks([[n] for n in lengths]).to_dict() == Counter(lengths)


def test_exact_beyond_64_bits():
    counts = {2**31 - 1: 2**40, 2**31 - 2: 2**63 - 1, 1: 2**63 - 1}
    histogram = Histogram.from_counts(counts)
    assert histogram.to_dict() == counts
    assert histogram.sequences == sum(counts.values()) > 2**63
    assert histogram.tokens == sum(length * count for length, count in counts.items()) > 2**90


@given(st.lists(st.integers(0, 2**63 - 1), max_size=6))
def test_sums_are_exact(values):
    array = np.array(values, dtype=np.int64)
    assert exact_sum(array) == sum(values)
    assert exact_dot(array, array[::-1].copy()) == sum(a * b for a, b in zip(values, reversed(values), strict=True))


def test_zero_counts_are_left_out_and_numpy_integers_taken():
    assert Histogram.from_counts({7: 0, np.int32(3): np.uint8(2)}).to_dict() == {3: 2}


def test_equality_hash_and_repr():
    a, b = Histogram.from_lengths([3, 5, 3]), Histogram.from_counts({5: 1, 3: 2})
    assert a == b
    assert hash(a) == hash(b)
    assert a != Histogram.from_lengths([3, 5])
    assert a != {3: 2, 5: 1}
    assert repr(a) == "Histogram(3 sequences, 11 tokens, 2 lengths 3..5)"
    assert repr(EMPTY) == "Histogram(empty)"


def test_is_read_only():
    histogram = Histogram.from_lengths([3])
    with pytest.raises(ValueError, match="read-only"):
        histogram.counts[0] = 7


def test_the_fingerprint_is_sha256_of_the_content():
    content = b"nopad.histogram.v1\0" + struct.pack("<4q", 3, 5, 2, 2**40)
    assert Histogram.from_counts({5: 2**40, 3: 2}).fingerprint == hashlib.sha256(content).hexdigest()


@given(histogram=st.from_type(Histogram))
def test_saving_and_loading(histogram, tmp_path_factory):
    path = tmp_path_factory.mktemp("histogram") / "h.json"
    histogram.save(path)
    assert Histogram.load(path) == histogram
    document = json.loads(path.read_text())
    assert (document["sequences"], document["tokens"]) == (histogram.sequences, histogram.tokens)


def test_the_file_is_readable_and_diffable(tmp_path):
    Histogram.from_lengths([5, 3, 5]).save(tmp_path / "h.json")
    assert (tmp_path / "h.json").read_text() == (
        '{\n "format": "nopad.histogram",\n "format_version": 1,\n "sequences": 3,\n "tokens": 13,\n'
        ' "histogram": {\n  "3": 1,\n  "5": 2\n }\n}\n'
    )


def test_saving_into_a_missing_folder(tmp_path, refuses):
    path = tmp_path / "none" / "h.json"
    with refuses(StorageError, f"failed while writing {path}: No such file or directory"):
        EMPTY.save(path)


@pytest.mark.parametrize(
    ("document", "counts", "capacity"),
    [
        ({"histogram": [0, 2, 0, 1]}, {2: 2, 4: 1}, 4),
        ({"histogram": [0, 2], "max_sequence_length": 512, "name": "x"}, {2: 2}, 512),
        ({"histogram": {"2": 2}, "max_sequence_length": 8}, {2: 2}, 8),
        ({"histogram": {"2": 2}}, {2: 2}, None),
        ({"histogram": {}}, {}, None),
        ({"2": 2, "30": 1099511627776}, {2: 2, 30: 2**40}, None),
        ([1, 1], {1: 1, 2: 1}, 2),
        ([], {}, None),
    ],
)
def test_every_json_form(tmp_path, document, counts, capacity):
    path = tmp_path / "h.json"
    path.write_text(json.dumps(document))
    histogram, declared = read_histogram(path)
    assert (histogram.to_dict(), declared) == (counts, capacity)


@pytest.mark.parametrize("content", ["{}", "3", '"text"', "null", '{"histogram": 3}', '{"a": 1}', '{"-1": 1}'])
def test_json_that_is_no_histogram(tmp_path, refuses, content):
    path = tmp_path / "h.json"
    path.write_text(content)
    forms = '{"histogram": [counts for length 1, 2, ...]} or a {length: count} map'
    with refuses(FormatError, f"{path} holds no histogram; expected {forms}"):
        Histogram.load(path)


@pytest.mark.parametrize("capacity", ["x", 0, 3.0, True, 2**31])
def test_a_capacity_that_is_none(tmp_path, refuses, capacity):
    path = tmp_path / "h.json"
    path.write_text(json.dumps({"histogram": [1], "max_sequence_length": capacity}))
    told = f"max_sequence_length of {path} must be an integer from 1 to 2147483647, got {capacity!r}"
    with refuses(FormatError, told):
        read_histogram(path)


def test_a_missing_file(tmp_path, refuses):
    with refuses(FormatError, f"cannot read the histogram {tmp_path}/none: No such file or directory"):
        Histogram.load(tmp_path / "none")


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe\xfd", b"[" * 200_000])
def test_a_file_that_is_not_json(tmp_path, content):
    (tmp_path / "h.json").write_bytes(content)
    with pytest.raises(FormatError, match=r"h\.json is not JSON \(.*\); a histogram is JSON, lengths may also be an"):
        Histogram.load(tmp_path / "h.json")


COUNT_RULE = "counts are integers from 0 to 2^63 - 1"


@pytest.mark.parametrize("count", [-1, 1.0, True, "3", None, 2**63])
def test_bad_counts(tmp_path, refuses, count):
    message = f"histogram counts {count!r} sequences of length 2; {COUNT_RULE}"
    with refuses(LengthError, message):
        Histogram.from_counts({1: 1, 2: count})
    (tmp_path / "h.json").write_text(json.dumps([1, count]))
    with refuses(LengthError, message):
        Histogram.load(tmp_path / "h.json")


@pytest.mark.parametrize("length", [0, -1, 2**31, 1.5, True, "3"])
def test_bad_lengths_in_counts(refuses, length):
    with refuses(LengthError, f"histogram has a length of {length!r}; lengths are integers from 1 to 2147483647"):
        Histogram.from_counts({length: 1})


def test_merged_counts_above_64_bits(refuses):
    most = Histogram.from_counts({2: 2**63 - 1})
    with refuses(LengthError, f"histogram counts {2**64 - 2} sequences of length 2; {COUNT_RULE}"):
        most + most


NOT_INTEGERS = [
    ([3.0, float("nan")], "got nan (float64) at index 1"),
    ([3.0, 1.5], "got 1.5 (float64) at index 1"),
    ([float("inf")], "got inf (float64) at index 0"),
    (np.array([3.0], np.float32), "got 3.0 (float32) at index 0"),
    ([True, False], "got True (bool)"),
    (["3"], "got '3' (<U1)"),
    ([None], "got None (object)"),
    ([1j], "got 1j (complex128)"),
]


@pytest.mark.parametrize("read", [Histogram.from_lengths, as_lengths])
class TestBadLengths:
    @pytest.mark.parametrize(("lengths", "got"), NOT_INTEGERS)
    def test_not_integers(self, refuses, read, lengths, got):
        with refuses(LengthError, f"lengths must be integers, {got}; convert them to an int dtype"):
            read(lengths)

    @pytest.mark.parametrize(("lengths", "shape"), [(5, "()"), ([[1, 2]], "(1, 2)"), (np.empty((0, 2)), "(0, 2)")])
    def test_not_one_dimensional(self, refuses, read, lengths, shape):
        with refuses(LengthError, f"lengths must be one-dimensional, got shape {shape}"):
            read(lengths)

    def test_ragged(self, read):
        with pytest.raises(LengthError, match=r"lengths must be one-dimensional: .*inhomogeneous"):
            read([[1], [2, 3]])

    def test_no_array(self, read):
        class Elsewhere:
            def __array__(self, dtype=None, copy=None):
                raise TypeError("can't convert a tensor on device cuda:0")

        with pytest.raises(LengthError, match=r"lengths cannot be read \(can't convert .*\); give a list or an array"):
            read(Elsewhere())

    @pytest.mark.parametrize("length", [0, -4])
    def test_below_one(self, refuses, read, length):
        with refuses(LengthError, f"length {length} at index 2; every sequence has at least 1 token: leave it out"):
            read([3, 1, length, length])


def test_indices_are_counted_over_chunks(refuses):
    with refuses(LengthError, "length 0 at index 4; every sequence has at least 1 token: leave it out"):
        Histogram.from_chunks([[1, 2], [], [3, 4, 0]])


@pytest.mark.parametrize("length", [2**31, 2**64 - 1])
def test_above_the_longest_length(refuses, length):
    with refuses(LengthError, f"length {length} at index 1; the longest length nopad counts is 2147483647"):
        Histogram.from_lengths(np.array([2**31 - 1, length], dtype=np.uint64))


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        ([8, 9], "length 9 at index 1 is above the capacity of 8; {} 9"),
        ([9, 1, 12, 9], "length 9 at index 0 is above the capacity of 8 (and 2 more); {} 12"),
        ([9] * 1501, "length 9 at index 0 is above the capacity of 8 (and 1,500 more); {} 9"),
    ],
)
def test_above_the_capacity(refuses, lengths, message):
    with refuses(LengthError, message.format("cut or remove it, or take a capacity of at least")):
        as_lengths(lengths, 8)


def test_lengths_become_int32_without_a_copy_where_they_are():
    lengths = np.array([1, 8], np.int32)
    assert as_lengths(lengths, 8) is lengths
    assert as_lengths([], 8).dtype == as_lengths(np.array([8], ">u8"), 8).dtype == np.int32


@pytest.mark.parametrize(
    ("lengths", "counts", "message"),
    [
        ([3, 2], [1, 1], "lengths of a histogram ascend, each once"),
        ([3, 3], [1, 1], "lengths of a histogram ascend, each once"),
        ([2, 3], [1], "a histogram of 2 lengths has 1 counts; give one each"),
        ([0, 3], [1, 1], "lengths of a histogram hold 0; they are integers from 1"),
        ([2, 3], [1, -4], "counts of a histogram hold -4; they are integers from 1"),
        ([2, 3], [1, 0], "counts of a histogram hold 0"),
        ([2.5], [1], "lengths must be integers, got 2.5"),
        ([2], [True], "lengths must be integers, got True"),
        ([[2]], [[1]], "lengths must be one-dimensional"),
        ([2**31], [1], "a histogram has a length of 2147483648; lengths are up to 2147483647"),
        (np.array([2**63], dtype=np.uint64), [1], "lengths of a histogram hold 9223372036854775808"),
    ],
)
def test_lengths_and_counts_that_are_none(lengths, counts, message):
    with pytest.raises(LengthError, match=message):
        Histogram(lengths, counts)


@pytest.mark.parametrize(
    "text",
    [
        '{"5": 3, "5": 2}',
        '{"histogram": {"5": 3, "05": 2}}',
        '{"histogram": {"5": 3, "\\uff15": 2}}',
        '{"histogram": {"' + "9" * 5000 + '": 2}}',
    ],
)
def test_no_count_is_lost_where_one_length_is_written_in_two_ways(tmp_path, text):
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(FormatError, match=r"a.json (is not JSON \(the key '5' comes twice\)|holds no histogram)"):
        Histogram.load(tmp_path / "a.json")


def test_lengths_under_a_mask():
    with pytest.raises(LengthError, match=r"the length at index 1 is masked; leave it out"):
        Histogram.from_lengths(np.ma.array([5, 3], mask=[0, 1]))
    assert Histogram.from_lengths(np.ma.array([5, 3], mask=[0, 0])).sequences == 2
