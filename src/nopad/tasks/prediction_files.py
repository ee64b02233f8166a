"""Predict into a folder of Parquet parts, in input order; an interrupted job resumes after its last complete part.

Each part, ``OUT/part-00000.parquet`` and so on, holds a fixed number of records (the last may hold fewer), and is
written atomically. A journal in ``OUT/.work`` holds the checksum of each complete part; a part without a checksum is
made again. The manifest, ``OUT/_predictions.json``, is written last, so a folder with a manifest is complete. The
manifest's name begins with an underscore, because readers of Parquet folders skip such names. A part is always divided
into the same chunks of `batch_records` records, and a pack never holds records of two chunks. So, on the same machine
with the same number of threads, a resumed job writes the same bytes as an uninterrupted one.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, is_dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch

from nopad.corpus.record_stream import RecordStream, open_records
from nopad.corpus.records import columns_in
from nopad.corpus.runs import Bad
from nopad.errors import (
    CorruptError,
    InputError,
    InterruptedJobError,
    LengthError,
    OptionError,
    OutputExistsError,
    RecordError,
)
from nopad.files import damage_errors, local_path, sha256_file, write_atomic
from nopad.model.admission import device_of
from nopad.model.safety import bare
from nopad.notation import from_json
from nopad.options import Option
from nopad.properties import cached_property
from nopad.seal import sealed, unsealed
from nopad.store.manifest import tool_versions
from nopad.store.monitor import Monitor, Silent
from nopad.store.workspace import Workspace, check_outside, differences, holds
from nopad.tasks.examples import placed
from nopad.tasks.fingerprints import tokenizer_fingerprint
from nopad.tasks.parts import aligned, array_of_cells, schema_of_part, table_of, together, write_part
from nopad.tasks.predicting import BATCH_RECORDS, Chunk
from nopad.tasks.predictor import Predictor
from nopad.tasks.task import Task
from nopad.wording import numbers_of

__all__ = ["MANIFEST", "PredictionFiles", "predict_files"]

MANIFEST = "_predictions.json"
PART_RECORDS = Option(default=10_000, help="records of a part")
_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class PredictionFiles:
    """A finished folder of predictions.

    Attributes:
        folder: path of the folder.
        records, sequences, tokens: number of records, sequences and tokens.
        counts: number of records that were truncated or left out, by reason ("empty_skipped": without a token,
            "bad_skipped": not readable), and the task's other counts. Predictions of records left out are null.
        parts: names of the Parquet files, in order.

    >>> import nopad, pathlib, tempfile
    >>> from transformers import BertConfig, BertForSequenceClassification
    >>> sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    >>> task = nopad.tasks.Classification(tokenizer, ["no", "yes"])
    >>> model = BertForSequenceClassification(BertConfig(**sizes))
    >>> records, folder = [{"text": "is it red ?"}, {"text": "yes"}], pathlib.Path(tempfile.mkdtemp())
    >>> made = nopad.tasks.predict_files(task, model, records, folder)
    >>> made.records, len(made.parts)
    (2, 1)
    """

    folder: Path
    records: int
    sequences: int
    tokens: int
    counts: Mapping[str, int]
    parts: tuple[str, ...]


def predict_files(
    task: Task,
    model: Any,
    inputs: Any,
    out: str | Path,
    *,
    keep: Mapping[str, str] | None = None,
    capacity: int | None = None,
    rows: int | None = None,
    batch_records: int = BATCH_RECORDS.default,
    part_records: int = PART_RECORDS.default,
    monitor: Monitor | None = None,
) -> PredictionFiles:
    """Predict records into a folder of Parquet files; the same call again resumes, or returns the finished folder.

    Args:
        task: the task.
        model: the model with the task's head; it is made pack-safe and put into evaluation mode.
        inputs: whatever `nopad.corpus.open_records` opens, except an iterator, which cannot be read again.
        out: the folder: new, empty, or left by the same call.
        keep: input columns to write beside the predictions: a dict from names in the output to names in the input.
        capacity: most tokens of a pack; None: `nopad.tasks.Predictor` chooses it.
        rows: number of packs run at a time; None: `nopad.tasks.Predictor` chooses it.
        batch_records: number of records that are read, packed and run at a time.
        part_records: number of records in a part; a killed job resumes after its last complete part.
        monitor: receives the progress (`nopad.store.monitor`); None: progress is not reported.

    Raises:
        RecordError: a record is bad, lacks a column that the task reads or `keep` names, or gets NaN from the model; or
            the values of a column have no common type.
        LengthError: a record is too long.
        SourceError, FormatError: the inputs cannot be read, or are damaged.
        UnsupportedModelError: nopad refuses this model; the message gives the reason.
        OptionError: an option has an invalid value; a kept column is named ``record``, or like a key of the
            predictions; the tokenizer lacks what the task needs; the inputs are an iterator; or `out` is a URL, or lies
            in a folder of the inputs.
        OutputExistsError: `out` holds something else, or predictions of another input or with other settings.
        CorruptError: `out` holds finished predictions, and a file of them is missing or damaged.
        ResumeError: the unfinished job in `out` was started with other inputs, model or settings, or its ``job.json``
            is missing or damaged; the message says which.
        OutputBusyError: another process is writing to `out`.
        StorageError: the disk is full or a write failed; call again to resume.
        InterruptedJobError: SIGINT was received; call again to resume.

    >>> import nopad, pyarrow.parquet, tempfile
    >>> from transformers import BertConfig, BertForSequenceClassification
    >>> task = nopad.tasks.Regression(tokenizer)
    >>> sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    >>> model = BertForSequenceClassification(BertConfig(**sizes, **task.model_options()))
    >>> with tempfile.TemporaryDirectory() as out:
    ...     made = predict_files(task, model, [{"text": "is it ?", "id": 7}], out, keep={"id": "id"})
    ...     pyarrow.parquet.read_table(made.folder / made.parts[0]).column_names
    ['record', 'id', 'score']
    """
    records = open_records(inputs).as_text({*task.text_columns(), *(keep or {}).values()})
    if not records.read_again():
        raise OptionError("an iterator can be read once, and a job must be able to go on; give a function, or a list")
    workspace = Workspace(local_path(out))
    check_outside(records.folders, workspace.out)
    fast = workspace.stored_settings().get("options", {}).get("fast")  # a new measurement may give another value
    predictor = Predictor(task, model, capacity=capacity, rows=rows, fast=fast if isinstance(fast, bool) else None)
    sizes = BATCH_RECORDS.check("batch_records", batch_records), PART_RECORDS.check("part_records", part_records)
    job = _Job(workspace, predictor, records, dict(keep or {}), sizes, monitor or Silent())
    if (workspace.out / MANIFEST).exists():
        made = job.finished()
        workspace.tidy()
        return made
    with workspace.claim(job.settings, records):
        try:
            made = job.run()
            workspace.clear()
            return made
        except KeyboardInterrupt as error:
            raise InterruptedJobError(
                f"stopped; the parts in {workspace.out} are whole: run the same command again to go on"
            ) from error
        except InputError as error:
            if isinstance(error, RecordError | LengthError | OptionError) and not any(workspace.out.glob("part-*")):
                workspace.abandon()  # no part was written yet
            raise


@dataclass
class _Job:
    """One call of `predict_files`: its arguments, and its steps as methods."""

    workspace: Workspace
    predictor: Predictor
    records: RecordStream
    keep: dict[str, str]
    sizes: tuple[int, int]
    monitor: Monitor

    @cached_property
    def settings(self) -> dict[str, Any]:
        """What predictions depend on besides the records: options, model, tokenizer, how files are read, and versions.

        The keys are ``options``, ``model``, ``tokenizer``, ``input`` and ``tool_versions``; all values are JSON.
        """
        predictor = self.predictor
        options = {
            "task": predictor.task.name,
            **described(predictor.task),
            "capacity": predictor.capacity,
            "rows": predictor.rows,
            "batch_records": self.sizes[0],
            "part_records": self.sizes[1],
            "keep": self.keep,
            "device": device_of(bare(predictor.model)).type,
            "fast": predictor.fast,
        }
        return {
            "options": from_json(json.dumps(options)),
            "model": {"sha256": model_fingerprint(predictor.model)},
            "tokenizer": {"sha256": tokenizer_fingerprint(predictor.task.tokenizer)},
            "input": self.records.settings(),
            "tool_versions": tool_versions("pyarrow", "tokenizers", "torch", "transformers"),
        }

    def finished(self) -> PredictionFiles:
        """Return the folder's finished predictions, after checking that this call would make the same ones.

        Options (except `fast`), model, tokenizer and input must be those with which the predictions were made; versions
        of packages may differ.

        Raises:
            OutputExistsError: the predictions were made with other settings, or from another input.
            CorruptError: a part or the manifest is missing or damaged.
        """
        out = self.workspace.out
        with damage_errors(out / MANIFEST, ValueError, KeyError, TypeError, AttributeError):
            manifest = unsealed(from_json((out / MANIFEST).read_text(encoding="utf-8")))
            stored = {name: manifest[name] for name in ("options", "model", "tokenizer", "input")}
            fast = stored["options"].get("fast")
            origin, files = manifest["source"]["sha256"], dict(manifest["source"]["files"])
            parts = [(part["file"], part["sha256"]) for part in manifest["parts"]]
        now = {name: value for name, value in self.settings.items() if name in stored}
        now["options"] = {**now["options"], "fast": fast}  # measured anew by this process
        if changed := differences(stored, now):
            raise OutputExistsError(
                f"{out} already holds predictions made with other settings ({changed}); choose another folder"
            )
        if origin != self._fingerprint():
            known = changes_of(files, dict(self.records.inventory()))
            named = f" ({known})" if known else ""
            raise OutputExistsError(f"{out} already holds predictions of another input{named}; choose another folder")
        for file, digest in parts:
            if not holds(out / file, digest):
                raise CorruptError(f"{out / file} is missing or damaged; delete {out} to predict again")
        return _made(out, manifest)

    @cached_property
    def cells(self) -> tuple[str, ...]:
        """Names, in the output, of the kept columns that hold cells of a CSV or TSV file (`nopad.tasks.parts`)."""
        return tuple(self.keep) if self.records.kind in ("csv", "tsv") else ()

    @cached_property
    def types(self) -> dict[str, pa.DataType]:
        """Arrow types of the kept columns, by name in the output; without columns for which the input has no type."""
        known = self.records.types()
        return {name: known[column] for name, column in self.keep.items() if column in known}

    def run(self) -> PredictionFiles:
        """Predict the records after the last complete part, write the manifest, and return the finished folder."""
        origin = self._fingerprint()
        known = self.workspace.finished_files(origin, self.workspace.out)
        parts: list[dict[str, Any]] = []
        while (name := _name(len(parts))) in known:
            parts.append(known[name])
        done, size = sum(part["records"] for part in parts), self.sizes[1]
        self.monitor.stage("counting records", None, "records")
        self.monitor.stage("predicting", self.records.count() - done, "records")
        schema = None
        if parts:
            schema = together([schema_of_part(self.workspace.out / part["file"]) for part in parts], "", self.cells)
        records = self.records.each(after=done)
        while part_records := list(islice(records, 1)):
            made, table = self._part(done, chain(part_records, islice(records, size - 1)))
            name = _name(len(parts))
            schema = table.schema if schema is None else together([schema, table.schema], name, self.cells)
            write_part(self.workspace.out / name, table)
            parts.append(self._noted(name, origin, made))
            done += made["records"]
        if schema is not None:
            for name in self.cells:
                if pa.types.is_null(schema.field(name).type):  # all cells are empty texts
                    schema = schema.set(schema.get_field_index(name), pa.field(name, pa.string()))
            parts = [self._with_schema(part, schema, origin) for part in parts]
        return self._publish(origin, parts)

    def _part(self, first: int, records: Iterator[dict[str, Any] | Bad]) -> tuple[dict[str, Any], pa.Table]:
        """Predict one part, all of `records`; return its facts and its table.

        The facts are the numbers of records, sequences and tokens, and the counts. `first` is the number of the first
        record in the input.
        """
        tables, counts, begin = [], Counter[str](), first
        sequences = tokens = 0
        while items := list(islice(records, self.sizes[0])):
            chunk = Chunk(items, begin)
            with placed(self.records):
                found = chunk.predicted(self.predictor, chunk.encode(self.predictor))
                kept: dict[str, Any] = {name: _kept(chunk, column) for name, column in self.keep.items()}
                kept |= {name: array_of_cells(kept[name]) for name in self.cells}
            tables.append(table_of(begin, found.predictions, kept, self.predictor.task.dtypes, self.types))
            counts.update(found.counts)
            sequences, tokens, begin = sequences + found.sequences, tokens + found.tokens, begin + chunk.size
            self.monitor.advance(chunk.size, found.tokens)
        schema = together([table.schema for table in tables], numbers_of("record", first, begin - 1), self.cells)
        table = pa.concat_tables([aligned(table, schema, self.cells) for table in tables]).combine_chunks()
        known = {"records": begin - first, "sequences": sequences, "tokens": tokens, "counts": dict(counts)}
        return known, table

    def _noted(self, name: str, origin: str, known: Mapping[str, Any]) -> dict[str, Any]:
        """Enter a written part in the journal; return the entry: the facts `known`, the file's name and checksum.

        `name` is the part's file name, and `origin` the fingerprint of the input.
        """
        facts = {key: value for key, value in known.items() if key not in ("file", "sha256")}
        facts["sha256"] = sha256_file(self.workspace.out / name)
        self.workspace.note(name, origin, **facts)
        return {"file": name, **facts}

    def _with_schema(self, part: dict[str, Any], schema: pa.Schema, origin: str) -> dict[str, Any]:
        """Write a part again if its columns or types differ from `schema`; return its journal entry.

        `part` is its present journal entry, and `origin` the fingerprint of the input.
        """
        path = self.workspace.out / part["file"]
        if schema_of_part(path).equals(schema):
            return part
        with damage_errors(path, pa.ArrowException):
            table = pq.read_table(path)
        write_part(path, aligned(table, schema, self.cells))
        return self._noted(part["file"], origin, part)

    def _publish(self, origin: str, parts: list[dict[str, Any]]) -> PredictionFiles:
        counts: Counter[str] = Counter()
        for part in parts:
            counts.update(part["counts"])
        manifest = {
            "format": "nopad predictions",
            "version": _VERSION,
            **self.settings,
            "source": {"sha256": origin, "files": [list(entry) for entry in self.records.inventory()]},
            **{name: sum(part[name] for part in parts) for name in ("records", "sequences", "tokens")},
            "counts": dict(sorted(counts.items())),
            "parts": [{name: part[name] for name in ("file", "records", "sha256")} for part in parts],
        }
        write_atomic(self.workspace.out / MANIFEST, (json.dumps(sealed(manifest), indent=2) + "\n").encode())
        return _made(self.workspace.out, manifest)

    def _fingerprint(self) -> str:
        self.monitor.stage("checking the input", None, "bytes")
        return self.records.fingerprint()


def changes_of(before: Mapping[str, int], now: Mapping[str, int]) -> str:
    """Return in words how the files of an input have changed; "" if they have not.

    `before` and `now` map the names of the files to their sizes in bytes. At most three files are named for each kind
    of change; further ones are counted.

    >>> changes_of({"a.txt": 3, "b.txt": 5}, {"b.txt": 6, "c.txt": 1, "d.txt": 1})
    'new: c.txt, d.txt; gone: a.txt; of another size: b.txt'
    """
    found = {
        "new": [name for name in now if name not in before],
        "gone": [name for name in before if name not in now],
        "of another size": [name for name, size in now.items() if before.get(name, size) != size],
    }
    return "; ".join(
        f"{what}: {', '.join(names[:3])}{f' and {len(names) - 3:,} more' if names[3:] else ''}"
        for what, names in found.items()
        if names
    )


def _name(number: int) -> str:
    return f"part-{number:05d}.parquet"


def _made(out: Path, manifest: Mapping[str, Any]) -> PredictionFiles:
    return PredictionFiles(
        folder=out,
        **{name: manifest[name] for name in ("records", "sequences", "tokens", "counts")},
        parts=tuple(part["file"] for part in manifest["parts"]),
    )


def _kept(chunk: Chunk, column: str) -> list[Any]:
    """Return the value of a column for each record of a chunk; None for a record that cannot be read.

    Raises:
        RecordError: a record has no such column.
    """
    for number, record in chunk.records.items():
        if column not in record:
            raise RecordError(
                f"record {number} has no {column!r}, only {columns_in(record)}; do not keep it, or add it"
            )
    return [chunk.records.get(number, {}).get(column) for number in range(chunk.first, chunk.first + chunk.size)]


def described(task: Task) -> dict[str, Any]:
    """Return the attributes of a task and of its objective, by name, as JSON values.

    Names of the objective's attributes begin with ``objective.``. The tokenizer and `Task.options` are left out. A
    value that JSON cannot hold is given by the name of its type.
    """
    plain = {name: value for name, value in vars(task).items() if name not in ("tokenizer", "objective", "options")}
    plain |= {f"objective.{name}": value for name, value in vars(task.objective).items()}
    return {name: _plain(value) for name, value in sorted(plain.items())}


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    if isinstance(value, Mapping):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(one) for one in (sorted(value, key=str) if isinstance(value, set | frozenset) else value)]
    return value if isinstance(value, str | int | float | None) else type(value).__name__


def model_fingerprint(model: Any) -> str:
    """Return the SHA-256 of a model's configuration and weights, in hex; takes about 1 s per GB of weights."""
    inner = bare(model)
    config = {name: value for name, value in inner.config.to_dict().items() if not name.startswith("_")}
    config.pop("transformers_version", None)
    digest = hashlib.sha256(json.dumps(config, sort_keys=True, default=str).encode())
    for name, tensor in sorted(model.state_dict().items()):
        if not isinstance(tensor, torch.Tensor):
            continue
        digest.update(f"\0{name}\0{tensor.dtype}\0{list(tensor.shape)}\0".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
