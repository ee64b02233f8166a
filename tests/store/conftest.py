"""Small packing jobs over ready-made ids: many blocks, commits and shards in a few milliseconds."""

from __future__ import annotations

import errno
import json
import os
import shutil
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tokenizers
from tokenizers import models, pre_tokenizers, processors

from nopad.corpus import CorpusOptions, IterableSource, Source, Tokenizer, open_source, sequences
from nopad.errors import InterruptedJobError
from nopad.files import sha256_file
from nopad.store import Manifest, PackOptions, job, open_packed, pack_corpus

CORPUS_OPTIONS = {field.name for field in fields(CorpusOptions)}
PACK_OPTIONS = {field.name for field in fields(PackOptions)}
WORDS = 40


@pytest.fixture(autouse=True, scope="module")
def _no_waiting_for_the_disk():
    """An fsync takes milliseconds, and tells only when the power fails."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: os.fstat(descriptor) and None)
        yield


@pytest.fixture(scope="session")
def pack():
    """`pack_corpus` with flat options, small shards, and a commit after every group."""

    def run(source: Source, out: Path, **options) -> Manifest:
        options = {"capacity": 16, "shard_tokens": 200, "commit_every_s": 0.0} | options
        corpus = {name: options.pop(name) for name in CORPUS_OPTIONS & set(options)}
        packing = {name: options.pop(name) for name in PACK_OPTIONS & set(options)}
        return pack_corpus(source, out, CorpusOptions(**corpus), packing=PackOptions(**packing), **options)

    return run


@pytest.fixture
def small_groups(monkeypatch):
    """Let the pipeline hand over every 300 bytes of source, so that a small job has many commits."""
    monkeypatch.setattr(job, "sequences", partial(sequences, group_bytes=300))


@pytest.fixture(scope="session")
def make_records():
    """Reproducible lists of ids, `low` to `high` long."""

    def make(n: int, *, low: int = 1, high: int = 16, seed: int = 0) -> list[list[int]]:
        rng = np.random.default_rng(seed)
        return [rng.integers(0, 30_000, size).tolist() for size in rng.integers(low, high + 1, n)]

    return make


@pytest.fixture(scope="session")
def _built(tmp_path_factory, pack, make_records) -> Path:
    out = tmp_path_factory.mktemp("built") / "out"
    pack(IterableSource(make_records(100, high=40)), out, depth=3, over_long="split")
    return out


@pytest.fixture
def dataset(tmp_path, _built) -> Path:
    """A packed dataset of 100 records, some split, in 11 shards of up to 12 packs; yours to damage."""
    return Path(shutil.copytree(_built, tmp_path / "dataset"))


@pytest.fixture
def source(make_records) -> IterableSource:
    """What `dataset` and `either` were packed from."""
    return IterableSource(make_records(100, high=40))


@pytest.fixture(params=["packed", "index"])
def either(request, tmp_path, pack, source) -> Path:
    """A dataset of either kind, which is its name."""
    out = tmp_path / request.param
    pack(source, out, over_long="split", depth=3, index_only=request.param == "index")
    return out


@pytest.fixture(scope="session")
def write_jsonl():
    """Write records as JSONL files of a folder, and open it in blocks of about 500 bytes."""

    def write(folder: Path, **files: list[list[int]]) -> Source:
        folder.mkdir(exist_ok=True)
        for name, records in files.items():
            lines = "".join(json.dumps({"input_ids": ids}) + "\n" for ids in records)
            (folder / f"{name}.jsonl").write_text(lines)
        return open_source(folder, block_bytes=500)

    return write


@pytest.fixture(scope="session")
def words() -> Tokenizer:
    """Word `wN` has id N + 3; [UNK] 0, [CLS] 1, [SEP] 2, BERT's template."""
    vocabulary = {"[UNK]": 0, "[CLS]": 1, "[SEP]": 2} | {f"w{i}": i + 3 for i in range(WORDS)}
    inner = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    inner.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    return Tokenizer(inner)


@pytest.fixture(scope="session")
def tree():
    """Every file below a folder with its bytes, except below the names in `without`."""

    def read(folder: Path, *, without: str = "") -> dict[str, bytes]:
        paths = sorted(path for path in folder.rglob("*") if path.is_file())
        named = {path.relative_to(folder).as_posix(): path for path in paths}
        return {name: path.read_bytes() for name, path in named.items() if name.split("/")[0] != without}

    return read


@pytest.fixture(scope="session")
def read_back():
    """{(record, start): tokens} of a dataset, after checking what each row derives from its lengths."""

    def read(out: Path) -> dict[tuple[int, int], list[int]]:
        found = {}
        for row in open_packed(out):
            lens, tokens = row.seq_lengths.tolist(), row.input_ids.tolist()
            ends = np.cumsum(lens).tolist()
            assert row.cu_seqlens.tolist() == [0, *ends]
            assert row.position_ids.tolist() == [i for n in lens for i in range(n)]
            assert row.sequence_ids.tolist() == [k for k, n in enumerate(lens, 1) for _ in range(n)]
            assert {row.cu_seqlens.dtype, row.position_ids.dtype, row.sequence_ids.dtype} == {np.dtype(np.int32)}
            starts = row["seq_start"].tolist() if "seq_start" in row.keys() else [0] * len(lens)  # noqa: SIM118
            for n, end, key in zip(lens, ends, zip(row.seq_index.tolist(), starts, strict=True), strict=True):
                assert key not in found
                found[key] = tokens[end - n : end]
        return found

    return read


@dataclass
class Breaker:
    """Makes the n-th durable step (an fsync or a rename) whose path holds `match` raise instead."""

    patch: pytest.MonkeyPatch

    def __call__(self, error: BaseException, *, at: int = 0, match: str = "") -> list[str]:
        steps: list[str] = []
        for name in ("fsync", "replace"):
            self.patch.setattr(os, name, partial(self._step, getattr(os, name), steps, error, at, match))
        return steps

    @staticmethod
    def _step(real, steps, error, at, match, target, *rest) -> None:
        path = os.readlink(f"/proc/self/fd/{target}") if isinstance(target, int) else str(target)
        if match in path:
            steps.append(path)
            if len(steps) == at + 1:
                raise error
        real(target, *rest)


@pytest.fixture
def break_at():
    """A `Breaker`; what it broke is repaired by `break_at.patch.undo()` and at the end of the test."""
    with pytest.MonkeyPatch.context() as patch:
        yield Breaker(patch)


@pytest.fixture
def disk_full() -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.fixture
def interrupt(break_at, pack):
    """Stop a job, as by SIGINT, at its n-th durable step whose path holds `match`."""

    def run(source: Source, out: Path, *, at: int = 0, match: str = "", **options) -> None:
        break_at(KeyboardInterrupt(), at=at, match=match)
        with pytest.raises(InterruptedJobError):
            pack(source, out, **options)
        break_at.patch.undo()

    return run


@pytest.fixture(scope="session")
def first_shard():
    return lambda out: min((out / "shards").iterdir())


@pytest.fixture(scope="session")
def only():
    """The only problem of a list of problems."""

    def check(problems: list[str]) -> str:
        assert len(problems) == 1, problems
        return problems[0]

    return check


@pytest.fixture(scope="session")
def edit_manifest(write_manifest):
    """Change keys of nopad.json, and its checksum; a value may be a function of the old one."""

    def edit(out: Path, **changes) -> None:
        path = out / "nopad.json"
        document = json.loads(path.read_text())
        for name, value in changes.items():
            document[name] = value(document[name]) if callable(value) else value
        write_manifest(path, document)

    return edit


@pytest.fixture(scope="session")
def rewrite_shard(edit_manifest):
    """Change the rows of one shard and make every checksum, size and total in the manifest true again.

    `change(rows)` gets the rows as lists of (record, start, tokens) and edits them in place.
    """

    def rewrite(out: Path, change, *, shard: int = 0) -> None:
        manifest = Manifest.load(out)
        old = manifest.shards[shard]
        path = out / old.file
        table = pq.read_table(path)
        rows = [_unpack(row) for row in table.to_pylist()]
        change(rows)
        columns = {
            "seq_lengths": [[len(tokens) for _, _, tokens in row] for row in rows],
            "seq_index": [[record for record, _, _ in row] for row in rows],
            "seq_start": [[start for _, start, _ in row] for row in rows],
            "input_ids": [[token for _, _, tokens in row for token in tokens] for row in rows],
        }
        arrays = {name: columns[name] for name in table.column_names}
        pq.write_table(pa.table(arrays, schema=table.schema), path, row_group_size=manifest.rows_per_group)
        new = replace(
            old,
            packs=len(rows),
            sequences=sum(map(len, rows)),
            tokens=sum(map(sum, columns["seq_lengths"])),
            bytes=path.stat().st_size,
            sha256=sha256_file(path),
        )
        shards = [new if s is old else s for s in manifest.shards]
        totals = {name: sum(getattr(s, name) for s in shards) for name in ("packs", "sequences", "tokens")}
        edit_manifest(out, shards=[vars(s) for s in shards], **totals)

    return rewrite


def _unpack(row: dict[str, list[int]]) -> list[tuple[int, int, list[int]]]:
    ends = np.cumsum(row["seq_lengths"]).tolist()
    starts = row.get("seq_start", [0] * len(ends))
    pieces = [row["input_ids"][end - n : end] for n, end in zip(row["seq_lengths"], ends, strict=True)]
    return list(zip(row["seq_index"], starts, pieces, strict=True))
