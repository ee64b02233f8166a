"""Records as plain Python, and a judge that reads a source by number and compares it with them."""

from __future__ import annotations

import pickle
import struct
from pathlib import Path

import numpy as np
import pytest

IDS = "input_ids"


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory, monkeypatch):
    """No test writes to the user's folder for copies."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


def flat(records: list[dict], name: str) -> list:
    return [value for record in records for value in record[name]]


@pytest.fixture(scope="session")
def make_records():
    """n records: ids, labels and a loss mask per token, a label, a weight and a flag per sequence."""

    def make(n: int, *, low: int = 1, high: int = 12, top: int = 30_000, seed: int = 0) -> list[dict]:
        rng = np.random.default_rng(seed)
        return [
            {
                IDS: rng.integers(0, top, size).tolist(),
                "labels": rng.integers(-100, 5, size).tolist(),
                "loss_mask": rng.integers(0, 2, size).astype(bool).tolist(),
                "scores": rng.random(size).tolist(),
                "label": int(rng.integers(0, 9)),
                "weight": float(rng.random()),
                "flag": bool(rng.integers(0, 2)),
            }
            for size in rng.integers(low, high + 1, n).tolist()
        ]

    return make


@pytest.fixture(scope="session")
def holds():
    """Compare a source, and the source as a worker gets it, with the records that it should hold."""

    def check(source, records: list[dict], *, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        assert len(source) == len(records)
        for one in (source, pickle.loads(pickle.dumps(source))):
            assert one.seq_lengths.dtype == np.int32
            assert one.seq_lengths.tolist() == [len(record[IDS]) for record in records]
            assert one.fingerprint == source.fingerprint
            everything = np.arange(len(records))
            for numbers in (everything, everything[::-1], rng.integers(0, len(records), 40), [0, 0], []):
                _compare(one.gather(numbers), [records[number] for number in np.asarray(numbers, int).tolist()])

    def _compare(found, chosen: list[dict]) -> None:
        assert found.begin is None
        assert found.seq_lengths.tolist() == [len(record[IDS]) for record in chosen]
        for name, column in found.tokens.items():
            assert column.tolist() == flat(chosen, name), name
        for name, column in found.values.items():
            assert column.tolist() == [record[name] for record in chosen], name
        if chosen:
            assert {*found.tokens, *found.values} == chosen[0].keys()

    return check


@pytest.fixture(scope="session")
def only():
    """The records with these columns alone."""

    def choose(records: list[dict], *names: str) -> list[dict]:
        return [{name: record[name] for name in names} for record in records]

    return choose


@pytest.fixture(scope="session")
def write_arrays():
    """Write records as a folder of ``ids.npy``, ``offsets.npy`` and further columns."""

    def write(folder: Path, records: list[dict], dtype=np.int32) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        lengths = [len(record[IDS]) for record in records]
        np.save(folder / "offsets.npy", np.cumsum([0, *lengths]))
        np.save(folder / "ids.npy", np.array(flat(records, IDS), dtype))
        for name, value in (records[0] if records else {}).items():
            if name != IDS:
                per_token = isinstance(value, list)
                np.save(
                    folder / f"{name}.npy", np.array(flat(records, name) if per_token else [r[name] for r in records])
                )
        return folder

    return write


CODES = {np.uint8: 1, np.int8: 2, np.int16: 3, np.int32: 4, np.int64: 5, np.float64: 6, np.float32: 7, np.uint16: 8}


@pytest.fixture(scope="session")
def write_megatron():
    """Write sequences of ids as a Megatron pair, from the description of the format alone."""

    def write(prefix: Path, sequences: list[list[int]], dtype=np.uint16, documents=None, modes=None, **wrong) -> Path:
        width = np.dtype(dtype).itemsize
        lengths = [len(ids) for ids in sequences]
        pointers = [width * sum(lengths[:i]) for i in range(len(lengths))]
        documents = list(range(len(lengths) + 1)) if documents is None else documents
        with open(f"{prefix}.bin", "wb") as file:
            for ids in sequences:
                file.write(np.array(ids, dtype).tobytes())
        with open(f"{prefix}.idx", "wb") as file:
            file.write(wrong.get("magic", b"MMIDIDX\x00\x00"))
            file.write(struct.pack("<Q", wrong.get("version", 1)))
            file.write(struct.pack("<B", wrong.get("code", CODES[dtype])))
            file.write(struct.pack("<Q", wrong.get("count", len(lengths))))
            file.write(struct.pack("<Q", wrong.get("document_count", len(documents))))
            file.write(struct.pack(f"<{len(lengths)}i", *wrong.get("lengths", lengths)))
            file.write(struct.pack(f"<{len(pointers)}q", *wrong.get("pointers", pointers)))
            file.write(struct.pack(f"<{len(documents)}q", *documents))
            if modes is not None:
                file.write(struct.pack(f"<{len(modes)}b", *modes))
        return prefix

    return write
