from __future__ import annotations

import itertools
import os
import pickle
import shutil
import signal
import threading
import warnings

import numpy as np
import pyarrow.parquet as pq
import pytest

import nopad
from nopad import random
from nopad.corpus import IterableSource, LengthsFile
from nopad.errors import CorruptError, OptionError
from nopad.store import PackedDataset
from nopad.store.shard_files import ShardFiles
from nopad.wording import counted

CAPACITY = 1 << 15


@pytest.fixture(scope="session")
def _large(tmp_path_factory, pack):
    """About a million tokens in five blocks of eight packs and one shorter, in three shards."""
    rng = np.random.default_rng(0)
    records = [np.arange(n) % 10 for n in rng.integers(1, CAPACITY // 2, 160)]
    out = tmp_path_factory.mktemp("large") / "out"
    pack(IterableSource(records, block_records=20), out, capacity=CAPACITY, shard_tokens=1 << 19)
    return out


@pytest.fixture
def large(_large) -> PackedDataset:
    return nopad.open_packed(_large)


def contents(rows) -> list[tuple[list[int], bytes]]:
    return [(row.seq_index.tolist(), row.input_ids.tobytes()) for row in rows]


def test_blocks_are_row_groups(large):
    assert large.row_groups > 4
    assert len(large.manifest.shards) > 2
    blocks = list(large.iter_row_groups(range(large.row_groups)))
    assert sum(map(len, blocks)) == len(large) == large.manifest.packs
    full = large.manifest.rows_per_group
    assert {len(block) for block in blocks[:-1]} == {full}
    assert 1 <= len(blocks[-1]) <= full


def test_iteration_order_is_index_order(large):
    in_order = contents(large)
    assert len(in_order) == len(large)
    assert contents(large[i] for i in range(len(large))) == in_order
    assert contents(large[i - len(large)] for i in range(len(large))) == in_order
    assert contents(large.__getitems__([3, -1, 0, 3])) == [in_order[3], in_order[-1], in_order[0], in_order[3]]
    assert contents([large[np.int64(9)]]) == [in_order[9]]


@pytest.mark.parametrize("beyond", [0, 1000])
def test_an_index_beyond_the_end(large, beyond):
    n = len(large)
    with pytest.raises(IndexError, match=f"^pack {n + beyond} of {n} packs$"):
        large[n + beyond]
    with pytest.raises(IndexError, match=f"^pack {-n - 1 - beyond} of {n} packs$"):
        large[-n - 1 - beyond]


def test_a_row(dataset):
    row = nopad.open_packed(dataset)[0]
    columns = dict(row)
    assert list(columns) == ["seq_lengths", "seq_index", "seq_start", "input_ids"]
    assert columns["input_ids"].size == columns["seq_lengths"].sum()
    assert [columns[name].dtype for name in columns] == [np.int32, np.int64, np.int64, np.int32]
    assert repr(row) == f"PackedRow({counted(row.seq_lengths.size, 'sequence')}, {row.input_ids.size} tokens)"
    with pytest.raises(KeyError) as caught:
        row["labels"]
    assert caught.value.args == ("no column 'labels'; there are: seq_lengths, seq_index, seq_start, input_ids",)


def test_an_index_only_dataset_says_where_the_tokens_are(tmp_path, pack):
    np.save(tmp_path / "a.npy", [3, 1, 2])
    pack(LengthsFile(tmp_path / "a.npy"), tmp_path / "out", index_only=True)
    row = nopad.open_packed(tmp_path / "out")[0]
    assert row.position_ids.tolist() == [i for n in row.seq_lengths for i in range(n)]
    with pytest.raises(KeyError) as caught:
        row.input_ids  # noqa: B018
    assert caught.value.args == (
        "no column 'input_ids'; there are: seq_lengths, seq_index; "
        "an index-only dataset leaves the tokens in its source",
    )


def test_an_order_is_a_permutation_that_seed_and_epoch_decide(large):
    in_order = contents(large)
    orders = {(seed, epoch): large.order(seed, epoch).tolist() for seed, epoch in [(0, 0), (0, 1), (1, 0)]}
    for order in orders.values():
        assert sorted(order) == list(range(len(large)))
        assert contents(large.read(order)) == [in_order[at] for at in order]
    assert len({str(order) for order in [*orders.values(), range(len(large))]}) == 4
    again = nopad.open_packed(large.path)
    list(again.read(again.order(5)))  # what was read before leaves no trace
    assert again.order(0, 1).tolist() == orders[0, 1]
    assert large.order(seed=0).dtype == np.int32


def test_an_order_is_what_is_written_down(large):
    """Blocks shuffled, and packs in each block: computed here with the readable generator of `nopad.random`."""
    size = large.manifest.rows_per_group
    begins = []
    for first, shard in zip(
        np.cumsum([0, *(s.packs for s in large.manifest.shards)]), large.manifest.shards, strict=False
    ):
        begins += [
            range(int(first) + at, int(first) + min(at + size, shard.packs)) for at in range(0, shard.packs, size)
        ]
    blocks = list(range(len(begins)))
    random.shuffle(blocks, random.key(7, random.STREAM_BLOCK_ORDER, 2))
    expected = []
    for block in blocks:
        packs = list(begins[block])
        random.shuffle(packs, random.key(7, random.STREAM_BLOCK_ORDER, 2, block))
        expected += packs
    assert large.order(7, 2).tolist() == expected


@pytest.mark.parametrize("done", [0, 1, 8, 13, 41])
def test_an_epoch_goes_on_anywhere(large, done):
    """Without a word about what was read before; the blocks before are not read again."""
    order = large.order(3)
    whole = contents(large.read(order))
    assert contents(nopad.open_packed(large.path).read(order[done:])) == whole[done:]
    assert contents(large.read(order[done : done + 5])) == whole[done : done + 5]
    assert contents(row for rank in range(3) for row in large.read(order[rank::3])) == [
        whole[at] for rank in range(3) for at in range(rank, len(whole), 3)
    ]


def test_what_is_read_in_an_order_is_decoded_once_a_block(large, monkeypatch):
    scanned = []
    real = ShardFiles.scan

    def scan(self, places):
        places = list(places)
        scanned.extend(places)
        return real(self, places)

    monkeypatch.setattr(ShardFiles, "scan", scan)
    order = large.order(3)
    list(large.read(order))
    assert len(scanned) == len(set(scanned)) == large.row_groups
    scanned.clear()
    list(large.read(order[-1:]))
    assert len(scanned) == 1


@pytest.mark.parametrize(
    ("numbers", "error", "says"),
    [
        ([0, 42, 0], IndexError, r"^pack numbers are in 0\.\.41, got 0\.\.42$"),
        ([-1], IndexError, r"^pack numbers are in 0\.\.41, got -1\.\.-1$"),
        ([0.5], TypeError, r"^pack numbers are a list of integers, got float64 \[1\]$"),
        ([[1]], TypeError, r"^pack numbers are a list of integers, got int64 \[1, 1\]$"),
    ],
)
def test_numbers_that_are_none(large, numbers, error, says):
    assert len(large) == 42
    with pytest.raises(error, match=says):
        large.read(numbers)
    assert list(large.read([])) == []


def test_lengths_alone(large, tmp_path, pack, source):
    indptr, lengths = large.seq_lengths()
    rows = [row.seq_lengths for row in large]
    assert (indptr.dtype, lengths.dtype) == (np.int64, np.int32)
    assert [lengths[a:b].tolist() for a, b in itertools.pairwise(indptr)] == [row.tolist() for row in rows]
    for kind in ("packed", "index"):
        pack(source, tmp_path / kind, over_long="split", validation=0.2, index_only=kind == "index")
    packed, index = (nopad.open_packed(tmp_path / kind / "validation") for kind in ("packed", "index"))
    for one, other in zip(packed.seq_lengths(), index.seq_lengths(), strict=True):
        np.testing.assert_array_equal(one, other)
        assert one.dtype == other.dtype


def test_lengths_read_one_column(large, monkeypatch):
    read = []
    real = pq.ParquetFile.read
    monkeypatch.setattr(
        pq.ParquetFile, "read", lambda self, columns, **how: read.append(columns) or real(self, columns, **how)
    )
    monkeypatch.setattr(pq.ParquetFile, "read_row_group", None)
    large.seq_lengths()
    assert read == [["seq_lengths"]] * len(large.manifest.shards)


def test_the_capacity(large):
    assert large.capacity == CAPACITY


def test_the_repr(tmp_path, pack):
    pack(IterableSource([[1] * 4, [], [2] * 40, [3] * 12], name="a"), tmp_path / "a", over_long="truncate")
    told = repr(nopad.open_packed(tmp_path / "a"))
    assert told == (
        f"PackedDataset(2 packs of at most 16 tokens; 3 sequences, 32 tokens, 0.00% padding; per token: input_ids; "
        f"of 4 records 1 truncated, 1 skipped as empty; in {tmp_path / 'a'})"
    )


@pytest.fixture
def many(tmp_path, pack):
    """300 blocks of four packs."""
    pack(
        IterableSource([[i % 7] * (16 - i % 2) for i in range(1200)], block_records=200),
        tmp_path / "many",
        shard_tokens=64,
    )
    return nopad.open_packed(tmp_path / "many")


def test_reading_at_random_is_warned_of_once(many):
    at = np.random.default_rng(0).permutation(len(many)).tolist()
    with pytest.warns(UserWarning, match=r"^packs are read at random: .* dataset\.read\(dataset\.order\(") as caught:
        rows = [many[i] for i in at]
    assert [warning.filename for warning in caught] == [__file__]
    assert len(rows) == 1200
    assert "dataset.to_hf()" in str(caught[0].message)
    assert "train_sampling_strategy='sequential'" in str(caught[0].message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        worker = pickle.loads(pickle.dumps(many))  # the same dataset, in another process
        assert sum(worker[i].seq_lengths.size for i in at) == 1200


@pytest.mark.slow
def test_of_many_workers_one_warns(many, capfd):
    torch = pytest.importorskip("torch")
    sampler = np.random.default_rng(0).permutation(len(many)).tolist()
    loader = torch.utils.data.DataLoader(
        many, batch_size=4, sampler=sampler, num_workers=2, collate_fn=len, worker_init_fn=_warnings_are_printed
    )
    assert sum(loader) == 1200
    assert capfd.readouterr().err.count("packs are read at random") == 1


def _warnings_are_printed(worker):
    warnings.simplefilter("always")
    warnings.showwarning = lambda message, *_: os.write(2, f"{message}\n".encode())


@pytest.mark.parametrize("how", ["in order", "an order", "two readers", "batches", "few"])
def test_other_ways_of_reading_are_not_warned_of(many, how):
    orders = {
        "in order": range(len(many)),
        "an order": many.order(0).tolist(),
        "two readers": [i for pair in zip(range(600), range(600, 1200), strict=True) for i in pair],
        "batches": [i for first in range(0, 1200, 8) for i in range(first, first + 8)],
        "few": range(0, 250, 4),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for at in orders[how]:
            many[at]


def test_a_pickled_dataset_reads_the_same_and_carries_no_data(large):
    before = contents(large)
    data = pickle.dumps(large)
    assert len(data) < 50_000
    copy = pickle.loads(data)
    assert contents(copy[i] for i in range(len(copy))) == before


def test_a_pickled_row_reads_the_same(large):
    row = pickle.loads(pickle.dumps(large[5]))
    assert contents([row]) == contents([large[5]])


def test_decoded_blocks_are_kept_up_to_a_limit(large, monkeypatch):
    dataset = PackedDataset(large.path, cached_row_groups=2)
    decoded = []
    real = dataset._checked
    monkeypatch.setattr(dataset, "_checked", lambda group, number: decoded.append(number) or real(group, number))
    size = dataset.manifest.rows_per_group
    for block in (0, 0, 1, 0, 2, 0, 1):  # 2 pushes out 1, the one longest unused
        dataset[block * size]
    assert decoded == [0, 1, 2, 1]


@pytest.mark.filterwarnings("ignore:packs are read at random")
def test_threads_may_share_it(large):
    expected = contents(large)
    dataset = PackedDataset(large.path, cached_row_groups=1)
    wrong = []

    def read(seed: int) -> None:
        for at in np.random.default_rng(seed).integers(0, len(dataset), 40).tolist():
            if contents([dataset[at]]) != [expected[at]]:
                wrong.append(at)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_stopping_early_leaves_no_thread(large):
    before = set(threading.enumerate())
    rows = iter(large)
    next(rows)
    rows.close()
    assert set(threading.enumerate()) == before


@pytest.mark.parametrize("damage", ["missing", "short", "empty", "overwritten"])
def test_a_damaged_shard(dataset, first_shard, damage):
    path = first_shard(dataset)
    whole = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        middle = whole[:100] + b"\xff" * (len(whole) - 600) + whole[-500:]
        path.write_bytes({"short": whole[:-100], "empty": b"", "overwritten": middle}[damage])
    with pytest.raises(CorruptError) as caught:
        nopad.open_packed(dataset)[0]
    assert str(caught.value).startswith(f"{path} is missing or damaged (")
    assert str(caught.value).endswith("; see `nopad verify`")
    with pytest.raises(CorruptError):
        list(nopad.open_packed(dataset))
    assert nopad.verify(dataset)


def test_other_shards_of_a_damaged_dataset_can_be_read(dataset, first_shard):
    whole = contents(nopad.open_packed(dataset))
    first_shard(dataset).unlink()
    assert contents([nopad.open_packed(dataset)[-1]]) == [whole[-1]]


def test_a_dataset_can_be_moved(dataset, tmp_path):
    before = contents(nopad.open_packed(dataset))
    shutil.move(dataset, tmp_path / "elsewhere")
    assert contents(nopad.open_packed(str(tmp_path / "elsewhere"))) == before
    assert nopad.verify(tmp_path / "elsewhere") == []


@pytest.mark.slow
def test_torch_loader_with_workers(dataset):
    data = pytest.importorskip("torch.utils.data")
    packed = nopad.open_packed(dataset)
    assert isinstance(packed[0].input_ids, np.ndarray)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    loader = data.DataLoader(
        packed, batch_size=7, num_workers=2, collate_fn=list, multiprocessing_context="spawn", shuffle=False
    )
    batches = list(loader)
    assert [len(batch) for batch in batches[:-1]] == [7] * (len(batches) - 1)
    assert contents(row for batch in batches for row in batch) == contents(packed)


def test_a_pickled_row_is_small_and_whole(large):
    row = large[len(large) - 1]
    data = pickle.dumps(row)
    assert len(data) < len(pickle.dumps(row._row_group))
    assert contents([pickle.loads(data)]) == contents([row])


@pytest.mark.parametrize("number", [-1, 6, 10**9])
def test_a_row_group_that_is_not_there(large, number):
    for read in (large.row_group, lambda at: next(large.iter_row_groups([at]))):
        with pytest.raises(IndexError, match=f"^row group {number} of 6 row groups$"):
            read(number)


def test_a_child_that_is_forked_while_another_thread_reads(either):
    """Loaders fork their workers: a lock that a thread held at that moment stayed shut in them for ever."""
    dataset = nopad.open_packed(either)
    expected = [row.seq_index.tolist() for row in dataset]
    for lock in (dataset._lock, dataset._files._lock):
        taken, done = threading.Event(), threading.Event()

        def hold(lock=lock, taken=taken, done=done):
            with lock:
                taken.set()
                done.wait()

        thread = threading.Thread(target=hold)
        thread.start()
        taken.wait()
        child = os.fork()
        if not child:
            signal.alarm(10)
            same = [dataset[at].seq_index.tolist() for at in range(len(dataset))] == expected
            os._exit(0 if same and [row.seq_index.tolist() for row in dataset] == expected else 1)
        done.set()
        thread.join()
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("value", [-1, 1.5, "1", True])
def test_options_of_reading(dataset, value):
    """Half a seed was the same order as a whole one, and -1 row groups an error when the first pack was read."""
    with pytest.raises(OptionError, match="cached_row_groups must be an integer from 0"):
        nopad.open_packed(dataset, cached_row_groups=value)
    for arguments in ((value,), (0, value)):
        with pytest.raises(OptionError, match=r"(seed|epoch) must be an integer from 0 to 18446744073709551615"):
            nopad.open_packed(dataset).order(*arguments)
    assert len(nopad.open_packed(dataset, cached_row_groups=0)[0].seq_lengths)


def test_what_is_no_source(dataset):
    with pytest.raises(OptionError, match=r"str is no Source; open it with nopad.open_source"):
        nopad.verify(dataset, source="a.jsonl")
