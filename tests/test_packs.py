from __future__ import annotations

import hashlib
import os
import re

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nopad
import nopad.files
import nopad.packs
from nopad import Packs
from nopad.errors import FormatError, LengthError, PlanMismatchError, StorageError
from nopad.packs import index_dtype

LENGTHS = [5, 3, 4, 2, 8, 1, 1]
MEMBERS = [[4], [0, 1], [2, 3, 5], [6]]
WIDTHS = pytest.mark.parametrize("dtype", [np.int32, np.int64])


def make(members, capacity=8, depth=3, dtype=np.int32) -> Packs:
    indptr = np.cumsum([0, *map(len, members)], dtype=dtype)
    return Packs(capacity, depth, indptr, np.array([i for pack in members for i in pack], dtype=dtype))


def listed(packs):
    return [pack.tolist() for pack in packs]


@st.composite
def random_packs(draw):
    sizes = draw(st.lists(st.integers(1, 5), max_size=12))
    order = iter(draw(st.permutations(range(sum(sizes)))))
    return make([[next(order) for _ in range(size)] for size in sizes], depth=draw(st.none() | st.just(5)))


def test_index_width():
    assert (index_dtype(0), index_dtype(2**31 - 1), index_dtype(2**31)) == (np.int32, np.int32, np.int64)


@WIDTHS
def test_one_pack_at_a_time(dtype):
    packs = make(MEMBERS, dtype=dtype)
    assert (len(packs), packs.sequences) == (4, 7)
    assert listed(packs) == listed(packs[i] for i in range(4)) == MEMBERS
    assert packs[-1].tolist() == [6]
    assert packs[np.int64(-4)].tolist() == [4]
    assert np.shares_memory(packs[1], packs.sequence)
    for at in (4, -5):
        with pytest.raises(IndexError, match=rf"\Apack {at} of 4 packs\Z"):
            packs[at]


@given(random_packs(), st.slices(12))
def test_slices_are_those_of_a_list(packs, at):
    part = packs[at]
    assert listed(part) == listed(packs)[at]
    assert (part.capacity, part.depth) == (packs.capacity, packs.depth)
    assert (part.indptr[0], part.indptr[-1]) == (0, part.sequence.size)
    assert part == make(listed(packs)[at], depth=packs.depth)


@given(random_packs(), st.data())
def test_taking_packs_by_number(packs, data):
    numbers = data.draw(st.lists(st.integers(0, len(packs) - 1), max_size=20)) if len(packs) else []
    assert listed(packs.take(numbers)) == [listed(packs)[number] for number in numbers]


@pytest.mark.parametrize("numbers", [[0, 4], [-1, 2]])
def test_taking_packs_that_are_not_there(numbers):
    with pytest.raises(IndexError, match=rf"\Apack numbers must be in 0\.\.3, got {numbers[0]}\.\.{numbers[1]}\Z"):
        make(MEMBERS).take(numbers)


def test_lengths_of_slots():
    packs = make(MEMBERS)
    assert packs.seq_lengths(LENGTHS).tolist() == [8, 5, 3, 4, 2, 1, 1]
    assert packs.seq_lengths(LENGTHS).dtype == np.int32
    assert make([]).seq_lengths([]).tolist() == []
    with pytest.raises(PlanMismatchError, match=r"packs hold sequence 6, the lengths are 3"):
        packs.seq_lengths(LENGTHS[:3])


def test_equality_hash_and_repr():
    packs = make(MEMBERS)
    assert packs == make(MEMBERS, dtype=np.int64)
    assert hash(packs) == hash(make(MEMBERS, dtype=np.int64))
    for other in (make(MEMBERS[::-1]), make(MEMBERS, capacity=9), make(MEMBERS, depth=None), make([[4, 0], [1]])):
        assert packs != other
        assert packs.fingerprint != other.fingerprint
    assert packs != MEMBERS
    assert repr(packs) == "Packs(4 packs, 7 sequences, capacity 8, depth 3)"
    assert repr(make([[0]])) == "Packs(1 pack, 1 sequence, capacity 8, depth 3)"
    assert repr(make([], depth=None)) == "Packs(0 packs, 0 sequences, capacity 8, depth unlimited)"


def test_the_fingerprint_is_sha256_of_the_content():
    numbers = np.array([0, 1, 3, 6, 7, 4, 0, 1, 2, 3, 5, 6], dtype="<i8")
    content = b"nopad.packs.v1\0" + b"8\0" + b"3\0" + b"4\0" + numbers.tobytes()
    assert make(MEMBERS).fingerprint == hashlib.sha256(content).hexdigest()


PROBLEMS = {
    "packs hold 3 sequences, the lengths are 2": ([5, 3], make([[0, 1], [2]])),
    "packs cover 1..2 of 2 sequences": ([5, 3], Packs(8, None, np.array([1, 2]), np.array([0, 1]))),
    "packs cover 0..1 of 2 sequences": ([5, 3], Packs(8, None, np.array([0, 1]), np.array([0, 1]))),
    "packs cover 0..0 of 1 sequences": ([5], Packs(8, None, np.array([0]), np.array([0]))),
    "pack 1 is empty or its bounds run backwards": ([5, 3], make([[0], [], [1]])),
    "pack 0 is empty or its bounds run backwards": ([], make([[], []])),
    "pack 2 is empty or its bounds run backwards": ([5, 3], Packs(8, None, np.array([0, 1, 3, 2]), np.array([0, 1]))),
    # int32 bounds whose differences wrap around to positive ones
    "pack 1 is empty or its bounds run backwards ": (
        [5],
        Packs(8, None, np.array([0, 2**31 - 1, -(2**31), -1, 1], dtype=np.int32), np.array([0])),
    ),
    "a sequence number is outside 0..1": ([5, 3], make([[0], [2]])),
    "a sequence number is outside 0..2": ([5, 3, 1], make([[0], [-1], [1]])),
    "sequence 1 is in 2 packs": ([5, 3, 1], make([[0, 1], [1]])),
    "pack 1 holds 4 sequences, above the depth of 3": ([5, 1, 1, 1, 1], make([[0], [1, 2, 3, 4]])),
    "pack 1 holds 9 tokens, above the capacity of 8": ([5, 6, 3], make([[0], [1, 2]])),
}


@pytest.mark.parametrize("problem", PROBLEMS)
def test_problems(refuses, problem):
    lengths, packs = PROBLEMS[problem]
    with refuses(PlanMismatchError, problem.rstrip()):
        packs.check(lengths)


def test_no_problem():
    make(MEMBERS).check(LENGTHS)
    make(MEMBERS, dtype=np.int64).check(LENGTHS)
    make([]).check([])
    make([[0]]).check([8])


def test_list_parts_begin_at_zero():
    whole = nopad.packs.list_array(np.array([0, 1, 3, 6], np.int32), np.arange(6, dtype=np.int32))
    offsets, values = nopad.packs.list_parts(whole)
    assert (offsets.tolist(), values.tolist()) == ([0, 1, 3, 6], [0, 1, 2, 3, 4, 5])
    assert not offsets.flags.owndata  # a view
    offsets, values = nopad.packs.list_parts(whole[1:])
    assert (offsets.tolist(), values.tolist()) == ([0, 2, 5], [1, 2, 3, 4, 5])


def test_tokens_are_summed_beyond_32_bits():
    lengths = np.full(4, 2**30, dtype=np.int32)
    packs = make([[0, 1, 2, 3]], capacity=2**31 - 1, depth=None)
    assert packs.problem(lengths) == f"pack 0 holds {2**32:,} tokens, above the capacity of {2**31 - 1:,}"


class TestFile:
    @pytest.fixture
    def path(self, tmp_path):
        return tmp_path / "packs.arrow"

    @WIDTHS
    @pytest.mark.parametrize("members", [MEMBERS, [], [[0]]])
    @pytest.mark.parametrize("depth", [None, 3])
    def test_saving_and_loading(self, path, dtype, members, depth):
        packs = make(members, depth=depth, dtype=dtype)
        packs.save(path)
        loaded = Packs.load(path)
        assert loaded == packs
        assert loaded.fingerprint == packs.fingerprint
        if members:
            assert loaded.indptr.dtype == loaded.sequence.dtype == dtype

    def test_loading_reads_the_file_once_and_keeps_nothing_else(self, path):
        nopad.pack(np.ones(100_000, dtype=np.int64), 8).save(path)
        before = pa.total_allocated_bytes()
        loaded = Packs.load(path)
        assert pa.total_allocated_bytes() - before < path.stat().st_size + 10_000
        assert not loaded.sequence.flags.owndata
        assert path.stat().st_size < 4 * (100_000 + 12_501) + 2000
        with open(path, "r+b") as file:  # nothing that is done to the file later shows
            file.write(bytes(path.stat().st_size))
        os.truncate(path, 100)
        loaded.check(np.ones(100_000, dtype=np.int64))
        assert listed(loaded[-2:]) == listed(loaded.take([12_498, 12_499]))

    def test_a_slice_is_saved_from_its_own_start(self, path):
        make(MEMBERS)[1:3].save(path)
        assert listed(Packs.load(path)) == MEMBERS[1:3]

    @WIDTHS
    def test_any_arrow_library_reads_it(self, path, dtype):
        make(MEMBERS, dtype=dtype).save(path)
        table = pa.ipc.open_file(path).read_all()
        assert table.column("sequence").to_pylist() == MEMBERS
        assert table.schema.metadata == {
            b"nopad.format": b"nopad.packs",
            b"nopad.format_version": b"1",
            b"nopad.capacity": b"8",
            b"nopad.depth": b"3",
        }
        assert table.schema.field("sequence").type.value_type == pa.from_numpy_dtype(dtype)

    def test_same_packs_same_bytes(self, path, tmp_path):
        make(MEMBERS).save(path)
        make(MEMBERS).save(tmp_path / "again")
        assert path.read_bytes() == (tmp_path / "again").read_bytes()

    def test_a_failed_write_leaves_the_old_file(self, path, monkeypatch, refuses):
        make(MEMBERS).save(path)

        def full(path):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(nopad.files, "fsync_path", full)
        with refuses(
            StorageError,
            f"no space left while writing {path} (No space left on device); "
            "free some space and run the same command again",
        ):
            make([[0]]).save(path)
        assert os.listdir(path.parent) == [path.name]
        assert listed(Packs.load(path)) == MEMBERS

    def test_a_missing_file(self, path):
        with pytest.raises(FormatError, match=rf"\Acannot read packs from {re.escape(str(path))}: .*No such file"):
            Packs.load(path)

    @pytest.mark.parametrize("content", [b"", b"no arrow at all, but long enough to hold a footer", b"ARROW1\0\0"])
    def test_another_file(self, path, content):
        path.write_bytes(content)
        with pytest.raises(FormatError, match=rf"\Acannot read packs from {re.escape(str(path))}: "):
            Packs.load(path)

    def test_damage_never_shows_as_other_packs(self, path):
        packs = nopad.pack(np.arange(1, 20), 32, depth=4)
        packs.save(path)
        whole, stated = path.read_bytes(), (packs.capacity, packs.depth)
        damaged = [whole[:n] for n in range(0, len(whole), 7)]
        damaged += [whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :] for at in range(0, len(whole), 3)]
        for content in damaged:  # refused, found by `problem`, another digit in the header, or a byte nobody reads
            path.write_bytes(content)
            try:
                loaded = Packs.load(path)
            except FormatError:
                continue
            found = loaded.problem(np.arange(1, 20, dtype=np.int32))
            assert found or (loaded.capacity, loaded.depth) != stated or loaded == packs

    HEADER = {"format": "nopad.packs", "format_version": "1", "capacity": "8", "depth": "none"}  # noqa: RUF012

    def write(self, path, column, header, *, name="sequence", batches=1):
        table = pa.table({name: column}).replace_schema_metadata({f"nopad.{k}": v for k, v in header.items()})
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
            for _ in range(batches):
                writer.write_table(table)

    @pytest.mark.parametrize("header", [{}, HEADER | {"format": "x"}, HEADER | {"format_version": "2"}])
    def test_another_arrow_file(self, path, refuses, header):
        self.write(path, [[0]], header)
        with refuses(FormatError, f"{path} is an Arrow file but not nopad packs (format version 1)"):
            Packs.load(path)

    NULLABLE = pa.array([[0, None]], type=pa.list_(pa.int32()))
    WRITTEN = nopad.packs.list_array(np.array([0, 1], np.int32), np.array([0], np.int32))

    @pytest.mark.parametrize(
        ("column", "change", "name"),
        [
            ([0], {}, "sequence"),
            ([["a"]], {}, "sequence"),
            (NULLABLE, {}, "sequence"),
            (WRITTEN, {}, "other"),
            (WRITTEN, {"depth": "max"}, "sequence"),
            (WRITTEN, {"depth": "-1"}, "sequence"),
            (WRITTEN, {"capacity": "8.0"}, "sequence"),
            (WRITTEN, {"capacity": ""}, "sequence"),
        ],
    )
    def test_a_column_or_header_that_nopad_does_not_write(self, path, refuses, column, change, name):
        self.write(path, column, self.HEADER | change, name=name)
        with refuses(FormatError, f"{path} is damaged: its header or column is not what nopad writes"):
            Packs.load(path)

    def test_several_batches(self, path, refuses):
        self.write(path, self.WRITTEN, self.HEADER, batches=2)
        with refuses(FormatError, f"{path} holds 2 record batches; a file of packs has one"):
            Packs.load(path)

    @pytest.mark.parametrize(
        ("lists", "change", "says"),
        [
            ([[0], []], {}, "its capacity is 0, a pack is empty, or a sequence number negative"),
            ([[0, -1]], {}, "its capacity is 0, a pack is empty, or a sequence number negative"),
            ([[0]], {"capacity": "0"}, "its capacity is 0, a pack is empty, or a sequence number negative"),
            ([[0], [1, 2, 3]], {"depth": "2"}, "a pack holds 3 sequences, its depth is 2"),
        ],
    )
    def test_packs_that_cannot_be(self, path, refuses, lists, change, says):
        element = pa.field("element", pa.int32(), nullable=False)
        self.write(path, pa.array(lists, type=pa.list_(element)), self.HEADER | change)
        with refuses(FormatError, f"{path} is damaged: {says}"):
            Packs.load(path)

    def test_offsets_that_run_backwards_are_found_by_loading(self, path, refuses):
        """Each buffer is as long as it should be, and no array may be made of them: Arrow itself would read beyond."""
        Packs(8, None, np.array([0, 1, 2], np.int32), np.array([0, 1], np.int32)).save(path)
        whole, offsets = path.read_bytes(), np.array([0, 1, 2], np.int32).tobytes()
        assert whole.count(offsets) == 1
        for bounds in ([0, 2, 1], [0, 99, 2], [0, -5, 2]):
            path.write_bytes(whole.replace(offsets, np.array(bounds, np.int32).tobytes()))
            with pytest.raises(FormatError, match=rf"\Acannot read packs from {re.escape(str(path))}: "):
                Packs.load(path)


def test_packs_of_other_lengths_or_another_order_are_refused():
    packs = nopad.pack(LENGTHS, 100).made_for(np.array(LENGTHS, np.int32))  # one pack: nothing else can find it
    packs.check(LENGTHS)
    for others in (LENGTHS[::-1], [1, *LENGTHS[1:]]):
        with pytest.raises(PlanMismatchError, match="made for sequences of other lengths, or in another order"):
            packs.check(others)


def test_no_packs_of_other_lengths_are_refused():
    empty = nopad.pack(LENGTHS, 100).made_for(np.array(LENGTHS, np.int32))[:0]
    with pytest.raises(PlanMismatchError, match="made for sequences of other lengths, or in another order"):
        empty.check([])
    for made in (nopad.pack([], 100), empty.made_for(np.zeros(0, np.int32))):
        made.check([])


def test_a_mask_is_no_list_of_pack_numbers():
    """[False, True, True] would be packs 0, 1 and 1."""
    packs = nopad.pack([5, 5, 5], 5)
    mask = np.array([False, True, True])
    for wrong in (mask, [0.5], [[0]]):
        with pytest.raises(LengthError, match="pack numbers must be"):
            packs.take(wrong)
    assert len(packs.take(np.flatnonzero(mask))) == 2
