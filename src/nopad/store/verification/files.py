"""Check a dataset's files against its manifest: their names, checksums and layout; there must be no other shards."""

from __future__ import annotations

from itertools import zip_longest
from pathlib import Path

from nopad.files import sha256_file
from nopad.store.index import PACKS, SEQUENCES
from nopad.store.manifest import MANIFEST, Manifest, Shard
from nopad.store.monitor import Monitor
from nopad.store.shards import ShardLayout

__all__ = ["file_problems"]


def file_problems(folder: Path, m: Manifest, monitor: Monitor) -> tuple[list[str], bool]:
    """Check the files of a dataset in `folder`; return ``(problems, readable)``.

    `problems` has one sentence for each problem. `readable` says whether every file that the manifest lists is there
    and undamaged. Shards, but not the files of an index, must also open as Parquet and have the columns that the
    manifest states. `m` is the manifest of the dataset; `monitor` receives the progress.
    """
    problems: list[str] = []
    listed = [shard.file for shard in m.shards]
    one_pack_each = ShardLayout(len(listed), 1, 1)
    names = [PACKS, SEQUENCES] if m.kind == "index" else [one_pack_each.name(i) for i in range(len(listed))]
    if listed != names:
        wrong = next(i for i, (name, wanted) in enumerate(zip_longest(listed, names)) if name != wanted)
        problems.append(
            f"{MANIFEST} lists other files than such a dataset has, or in another order, from number {wrong}"
        )
    shards = folder / "shards"
    present = {f"shards/{path.name}" for path in shards.iterdir()} if shards.is_dir() else set()
    for name in sorted(present - set(listed)):
        problems.append(f"{name} does not belong to this dataset")
    monitor.stage("checksums", sum(shard.bytes for shard in m.shards), "bytes")
    whole = True
    for shard in m.shards:
        path = folder / shard.file
        if not path.is_file():
            problems.append(f"{shard.file} is missing")
            whole = False
        elif (size := path.stat().st_size) != shard.bytes:
            problems.append(f"{shard.file} has {size:,} bytes, expected {shard.bytes:,}")
            whole = False
        elif (digest := sha256_file(path)) != shard.sha256:
            problems.append(f"{shard.file} is damaged: SHA-256 {digest}, expected {shard.sha256}")
            whole = False
        elif m.kind == "packed":
            found, readable = _footer_problems(folder, m, shard)
            problems += found
            whole = whole and readable
        monitor.advance(shard.bytes)
    return problems + _total_problems(m), whole


def _total_problems(m: Manifest) -> list[str]:
    """Return one sentence for each total of packs, sequences or tokens that does not agree with the manifest's shards.

    In a packed dataset, a total must be the sum over the shards. In an index, each file must state the total itself.
    """
    problems: list[str] = []
    for name in ("packs", "sequences", "tokens"):
        total, parts = getattr(m, name), [getattr(shard, name) for shard in m.shards]
        if m.kind == "packed" and sum(parts) != total:
            problems.append(f"{MANIFEST} states {total:,} {name}, its shards add up to {sum(parts):,}")
        if m.kind == "index" and set(parts) != {total}:
            problems.append(f"{MANIFEST} states {total:,} {name}, and for its files {parts}")
    return problems


def _footer_problems(folder: Path, m: Manifest, shard: Shard) -> tuple[list[str], bool]:
    """Compare the footer of a shard's Parquet file with the manifest; return ``(problems, readable)``.

    `problems` has one sentence for a difference in columns or row groups, and one for each number (of packs, sequences
    or tokens) that differs. `readable` is False if Parquet cannot open the file, or if its columns are not those of the
    manifest; then nothing further is compared.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile((folder / shard.file).absolute()) as file:
            metadata, schema = file.metadata, file.schema_arrow
    except (OSError, pa.ArrowException) as error:
        return [f"{shard.file} cannot be read: {error}"], False
    if {field.name: str(field.type) for field in schema} != m.columns:
        names = ", ".join(schema.names)
        return [f"{shard.file} has the columns {names}, or types, that {MANIFEST} does not state"], False
    problems: list[str] = []
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    rest = metadata.num_rows % m.rows_per_group if shard is m.shards[-1] else 0
    regular = [m.rows_per_group] * (metadata.num_rows // m.rows_per_group) + [rest] * bool(rest)
    if [group.num_rows for group in groups] != regular:
        problems.append(f"{shard.file} has row groups of other than {m.rows_per_group} packs")
    columns = {"sequences": schema.names.index("seq_lengths"), "tokens": len(schema.names) - 1}
    held = {name: sum(group.column(at).num_values for group in groups) for name, at in columns.items()}
    for name, number in {"packs": metadata.num_rows, **held}.items():
        if number != getattr(shard, name):
            problems.append(f"{MANIFEST} states {getattr(shard, name):,} {name} in {shard.file}, it holds {number:,}")
    return problems, True
