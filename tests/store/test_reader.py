from __future__ import annotations

import os
import pickle
import shutil
import threading

import numpy as np
import pytest

import nopad
from nopad.corpus import IterableSource, LengthsFile
from nopad.errors import CorruptError
from nopad.store import PackedDataset

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
    assert large.blocks > 4
    assert len(large.manifest.shards) > 2
    blocks = list(large.iter_blocks(range(large.blocks)))
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
    assert repr(row) == f"PackedRow({row.seq_lengths.size} sequences, {row.input_ids.size} tokens)"
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


def test_a_shuffle_is_a_permutation_that_seed_and_epoch_decide(large):
    in_order = contents(large)
    orders = {(seed, epoch): contents(large.shuffled(seed, epoch)) for seed, epoch in [(0, 0), (0, 1), (1, 0)]}
    for order in orders.values():
        assert sorted(order) == sorted(in_order)
        assert order != in_order
    assert len({str(order) for order in orders.values()}) == 3
    assert contents(nopad.open_packed(large.path).shuffled(0, 1)) == orders[0, 1]
    assert contents(large.shuffled(seed=0)) == orders[0, 0]


def test_blocks_and_packs_within_them_are_shuffled(large):
    order = [row.seq_index[0] for row in large.shuffled(3)]
    place = {row.seq_index[0]: i // large.manifest.rows_per_group for i, row in enumerate(large)}
    visited = [place[first] for first in order]
    runs = [block for i, block in enumerate(visited) if i == 0 or visited[i - 1] != block]
    assert sorted(runs) == list(range(large.blocks))
    assert runs != sorted(runs)
    first = [row.seq_index[0] for row in large if place[row.seq_index[0]] == runs[0]]
    assert order[: len(first)] != first


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
    dataset = PackedDataset(large.path, cached_blocks=2)
    decoded = []
    monkeypatch.setattr(dataset, "_read", lambda number: decoded.append(number) or PackedDataset._read(dataset, number))
    size = dataset.manifest.rows_per_group
    for block in (0, 0, 1, 0, 2, 0, 1):  # 2 pushes out 1, the one longest unused
        dataset[block * size]
    assert decoded == [0, 1, 2, 1]


def test_threads_may_share_it(large):
    expected = contents(large)
    dataset = PackedDataset(large.path, cached_blocks=1)
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
    assert len(data) < len(pickle.dumps(row._block))
    assert contents([pickle.loads(data)]) == contents([row])
