"""The manifest of a packed dataset, ``nopad.json``: the settings, totals and checksums that `nopad.verify` compares.

It holds no time, and no path outside the dataset folder. So the same input, options and versions of packages give the
same bytes. It includes a checksum of itself (`nopad.seal`), by which damage to it is noticed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any, Literal

from nopad.corpus import Counts
from nopad.corpus.finding import MANIFEST
from nopad.errors import CorruptError, FormatError
from nopad.files import storage_errors, write_atomic
from nopad.notation import from_json
from nopad.seal import SEAL, sealed, unsealed

__all__ = [
    "FORMAT_VERSION",
    "MANIFEST",
    "PLAN",
    "POLICIES",
    "SPLITS",
    "Manifest",
    "Shard",
    "other_version",
    "split_folders",
    "split_of",
    "tool_versions",
]

PLAN = "plan.json"
FORMAT = "nopad.packed"
FORMAT_VERSION = 5
SPLITS = ("train", "validation")  # folders of a job with a held-out share
POLICIES = ("special_tokens", "over_long", "empty", "on_bad_record", "vocab_size")  # of CorpusOptions


@dataclass(frozen=True, kw_only=True)
class Shard:
    """One file of a packed dataset.

    Attributes:
        file: path of the file, relative to the dataset folder.
        packs, sequences, tokens: number of packs, sequences and tokens in the file. If the dataset is index-only
            (`Manifest.kind` "index"), each of its files has the numbers of the whole dataset.
        bytes: size of the file in bytes.
        sha256: SHA-256 of the file, in hex.

    >>> import nopad, tempfile
    >>> from nopad.store import Manifest
    >>> out = tempfile.mkdtemp()
    >>> _ = nopad.pack_corpus(nopad.open_source([[7, 8, 9], [5], [1, 2]]), out, nopad.CorpusOptions(capacity=4))
    >>> [shard] = Manifest.load(out).shards
    >>> shard.file, shard.packs, shard.tokens
    ('shards/00000-of-00001.parquet', 2, 6)
    """

    file: str
    packs: int
    sequences: int
    tokens: int
    bytes: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The content of ``nopad.json``.

    Attributes:
        kind: "packed" (shards hold the tokens) or "index" (an index-only dataset: the tokens stay in the source).
        capacity, depth, algorithm, seed, order: the options of packing; depth None: no limit.
        packs, sequences, tokens: number of packs, sequences and tokens in the dataset.
        source: ``sha256`` (fingerprint of the source, see `nopad.corpus.chain`), ``records``, ``files`` and ``bytes``
            (how many of these were read), ``ignored`` (number of files that were found but not read), ``left_out``
            (names of columns that were not packed).
        tokenizer: ``sha256``, ``vocab_size``, and the special tokens before and after a sequence as lists of ids,
            ``prefix`` and ``suffix``; None for ready-made ids.
        options: the options by which the source was read, cut into sequences, divided and packed.
        counts: how many records were read, skipped, truncated and so on, by the field names of `nopad.corpus.Counts`.
        sources: for each named source, its ``name``, its ``first_record`` (number of its first record) and its counts,
            in the order of the numbers in ``seq_source``; empty if sources are not named.
        plan_sha256: SHA-256 of ``plan.json``, in hex.
        sequence_checksum: checksum of the record, start and length of all sequences, independent of their order; 16 hex
            digits.
        columns: Arrow type of each column, by name; empty for an index.
        carried: for each column that was packed along with the tokens, by name, "token" or "sequence": it has one value
            per token or per sequence; empty for an index.
        rows_per_group: number of packs in a row group; the last one of a shard may have fewer.
        shards: the data files, in order.
        tool_versions: versions of nopad and of the packages that the bytes depend on, by name.

    >>> import nopad, tempfile
    >>> from nopad.store import Manifest
    >>> out = tempfile.mkdtemp()
    >>> _ = nopad.pack_corpus(nopad.open_source([[7, 8, 9], [5], [1, 2]]), out, nopad.CorpusOptions(capacity=4))
    >>> manifest = Manifest.load(out)
    >>> manifest.kind, manifest.packs, manifest.sequences, manifest.tokens
    ('packed', 2, 3, 6)
    """

    kind: Literal["packed", "index"]
    capacity: int
    depth: int | None
    algorithm: str
    seed: int
    order: str
    packs: int
    sequences: int
    tokens: int
    source: Mapping[str, Any]
    tokenizer: Mapping[str, Any] | None
    options: Mapping[str, Any]
    counts: Mapping[str, int]
    sources: Sequence[Mapping[str, Any]]
    plan_sha256: str
    sequence_checksum: str
    columns: Mapping[str, str]
    carried: Mapping[str, str]
    rows_per_group: int
    shards: tuple[Shard, ...]
    tool_versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def efficiency(self) -> float:
        """Number of tokens / (number of packs x capacity), from 0 to 1; 1.0 if there is no pack."""
        return self.tokens / (self.packs * self.capacity) if self.packs else 1.0

    def to_json(self) -> str:
        """Return the content of ``nopad.json``."""
        document = sealed({"format": FORMAT, "format_version": FORMAT_VERSION, **asdict(self)})
        return json.dumps(document, indent=2) + "\n"

    def save(self, folder: Path) -> None:
        """Write ``nopad.json`` into `folder`; a job writes it last.

        Raises:
            StorageError: the write fails.
        """
        write_atomic(folder / MANIFEST, self.to_json().encode())

    @classmethod
    def load(cls, folder: str | Path) -> Manifest:
        """Read the manifest of a packed dataset, and return it.

        Raises:
            FormatError: the folder is not a packed dataset, has an unknown format version, or holds two datasets
                (``train`` and ``validation``).
            CorruptError: the job that writes the dataset has not finished, only one of ``train`` and ``validation`` is
                there, or the manifest is damaged.
            StorageError: the manifest cannot be read.
        """
        path = Path(folder) / MANIFEST
        if not path.is_file():
            if (Path(folder) / ".work").is_dir() and not split_folders(folder):  # else perhaps a lock only
                raise CorruptError(
                    f"{folder} holds an unfinished packing job; run the same `nopad pack` again to finish it"
                )
            halves = [name for name in SPLITS if (Path(folder) / name / MANIFEST).is_file()]
            if len(halves) == 1:
                [other] = set(SPLITS) - set(halves)
                raise CorruptError(f"{folder} holds {halves[0]}, and not {other}, which was made with it")
            if halves:
                raise FormatError(f"{folder} holds two datasets; open {' or '.join(map(str, split_folders(folder)))}")
            raise FormatError(f"{folder} is no packed dataset: it has no {MANIFEST}")
        document = _document(path)
        version = document.get("format_version")
        if version != FORMAT_VERSION:
            raise FormatError(
                f"{path} has format version {version!r}; this nopad reads {FORMAT_VERSION}: pack the source again"
            )
        known = {f.name for f in fields(cls)} | {"format", "format_version", SEAL}
        if set(document) != known:
            odd = sorted(set(document) ^ known)
            raise CorruptError(
                f"{path} is damaged, or of another version of nopad: unexpected or missing {', '.join(odd)}; "
                "pack again into a new folder"
            )
        try:
            values = unsealed(document)
            shards = tuple(Shard(**shard) for shard in values.pop("shards"))
        except (TypeError, ValueError) as error:
            raise CorruptError(f"{path} is damaged: {error}") from error
        del values["format"], values["format_version"]
        manifest = cls(shards=shards, **values)
        for name, sound in _soundness(manifest):
            if not sound:
                raise CorruptError(f"{path} is damaged: {name} is {document.get(name, shards)!r}")
        return manifest


_SOURCE_COUNTS = ("records", "files", "bytes", "ignored")


def _soundness(m: Manifest) -> Iterator[tuple[str, bool]]:
    """Yield ``(name, valid)`` for fields of a manifest: the field's name, and whether its value is valid."""
    yield "kind", m.kind in ("packed", "index")
    yield "depth", m.depth is None or _is_count(m.depth, least=1)
    for name, least in (("capacity", 1), ("rows_per_group", 1), ("packs", 0), ("sequences", 0), ("tokens", 0)):
        yield name, _is_count(getattr(m, name), least=least)
    yield "seed", type(m.seed) is int and 0 <= m.seed < 2**64
    for name in ("algorithm", "order", "plan_sha256", "sequence_checksum"):
        yield name, isinstance(getattr(m, name), str)
    yield (
        "source",
        _has(m.source, "sha256", "left_out", *_SOURCE_COUNTS)
        and all(_is_count(m.source[name]) for name in _SOURCE_COUNTS),
    )
    yield "tokenizer", m.tokenizer is None or _has(m.tokenizer, "sha256", "vocab_size", "prefix", "suffix")
    yield "counts", _has(m.counts, *(f.name for f in fields(Counts))) and all(map(_is_count, m.counts.values()))
    yield "sources", isinstance(m.sources, list) and all(map(_is_part, m.sources))
    yield "options", _has(m.options, *POLICIES) and _are_options(m.options)
    yield "columns", _has(m.columns) and bool(m.columns) == (m.kind == "packed")
    yield (
        "carried",
        _has(m.carried) and all(per in ("token", "sequence") and name in m.columns for name, per in m.carried.items()),
    )
    yield "tool_versions", _has(m.tool_versions)
    numbers = [number for s in m.shards for number in (s.packs, s.sequences, s.tokens, s.bytes)]
    names = [name for s in m.shards for name in (s.file, s.sha256)]
    yield "shards", bool(names) and all(map(_is_count, numbers)) and all(isinstance(name, str) for name in names)


def _is_count(value: object, *, least: int = 0) -> bool:
    return type(value) is int and least <= value < 2**63


def _has(value: object, *keys: str) -> bool:
    return isinstance(value, dict) and set(keys) <= set(value)


def _are_options(options: Mapping[str, Any]) -> bool:
    """Return whether the entries `validation` and `split` of `options` are valid; verification computes with them.

    `validation` must be None or a share between 0 and 1; `split` must be "train" or "validation" if there is a share,
    else None.
    """
    share, split = options.get("validation"), options.get("split")
    return (share is None or (type(share) is float and 0 < share < 1)) and (split in SPLITS if share else split is None)


def _is_part(part: object) -> bool:
    """Return whether an entry of `Manifest.sources` has the fields that such an entry must have."""
    if not isinstance(part, dict) or not isinstance(part.get("name"), str):
        return False
    return all(_is_count(part.get(name)) for name in ("first_record", *(f.name for f in fields(Counts))))


def split_folders(folder: str | Path) -> list[Path]:
    """Return the ``train`` and ``validation`` folders in `folder`; [] unless both hold a finished dataset.

    >>> split_folders("no such folder")
    []
    """
    found = [Path(folder) / name for name in SPLITS]
    return found if all((path / MANIFEST).is_file() for path in found) else []


def split_of(folder: Path) -> Any:
    """Return which half of a job with a held-out share the dataset in a folder is, "train" or "validation".

    The result is None if the job made no other dataset. The format version may be any.

    Raises:
        FormatError: the folder's ``nopad.json`` is not the manifest of a packed dataset.
        CorruptError: the manifest is damaged.
        StorageError: the manifest cannot be read.
    """
    options = _document(folder / MANIFEST).get("options")
    return options.get("split") if isinstance(options, dict) else None


def tool_versions(*packages: str) -> dict[str, str]:
    """Return the installed versions of nopad and of these packages, by name."""
    import nopad

    return {"nopad": nopad.__version__, **{name: _version(name) for name in sorted(packages)}}


@cache
def _version(package: str) -> str:
    from importlib.metadata import version  # reads and parses the package's whole metadata

    return version(package)


def other_version(folder: Path) -> Any:
    """Return the format version of the dataset in a folder if this version of nopad cannot read it.

    The result is None if nopad can read it, or if the folder holds no dataset.

    Raises:
        FormatError: the folder's ``nopad.json`` is not the manifest of a packed dataset.
        CorruptError: the manifest is damaged.
        StorageError: the manifest cannot be read.
    """
    if not (folder / MANIFEST).is_file():
        return None
    version = _document(folder / MANIFEST).get("format_version")
    return None if version == FORMAT_VERSION else version


def _document(path: Path) -> dict[str, Any]:
    """Return the JSON object in a manifest file, as a dict; its format version may be any.

    Raises:
        FormatError: the file is not a manifest of a packed dataset.
        CorruptError: the file is damaged.
        StorageError: the file cannot be read.
    """
    try:
        with storage_errors("reading", path):
            content = path.read_bytes()
        document = from_json(content.decode())
    except ValueError as error:
        raise CorruptError(f"{path} is damaged: {error}") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise FormatError(f'{path} is not the manifest of a packed dataset: it lacks "format": "{FORMAT}"')
    if document.get("format_version") is None:
        raise CorruptError(f"{path} is damaged: it lacks format_version")
    return document
