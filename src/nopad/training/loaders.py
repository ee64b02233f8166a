"""Make the loaders of a configuration's data: records of a task, or stored tokens."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from nopad.balance import cost_model
from nopad.corpus.record_stream import RecordStream, open_records
from nopad.errors import InputError, OptionError, SourceError
from nopad.loading import PackedLoader, causal
from nopad.loading.sources import open_tokens
from nopad.loading.sources.megatron import megatron_prefix
from nopad.loading.summary import Summary
from nopad.store.manifest import MANIFEST, split_folders
from nopad.store.workspace import check_outside
from nopad.tasks import Examples, Objective, OfTokens, Task
from nopad.tasks.examples import counted
from nopad.tasks.fingerprints import tokenizer_fingerprint
from nopad.tasks.registry import task_class
from nopad.training.encoding import Part, encoded
from nopad.training.tables import TrainConfig

__all__ = ["Loaders", "about", "find_data", "has_evaluation", "widest"]


def find_data(config: TrainConfig) -> dict[str, Any]:
    """Open the training and evaluation data; return a dict with the keys "train" and "eval".

    A value is a `RecordStream`, or the path at which tokens are stored. "eval" is None if there are no evaluation data.
    With ``data.held_out``, "eval" is the same stream as "train".

    Raises:
        InputError: the data cannot be opened, or do not fit the configuration; the message names the field.
        MissingExtraError: a package that reads the data is not installed.
    """
    found: dict[str, Any] = {"eval": None}
    for name in ("train", "eval"):
        inputs = getattr(config.data, name)
        if not inputs:
            continue
        with about(f"data.{name}"):
            found[name] = _opened(inputs, name, config)
            if isinstance(found[name], RecordStream):  # a resumed run would read its own files as records
                check_outside(found[name].folders, Path(config.output.folder))
    if config.data.held_out:
        if not isinstance(found["train"], RecordStream):
            raise OptionError(
                "data.held_out chooses among records, and data.train holds tokens; hold some out when you pack them "
                "(nopad pack --validation), and give them as data.eval"
            )
        found["eval"] = found["train"]
    elif found["eval"] is None and _has_split(config):
        found["eval"] = str(split_folders(config.data.train[0])[1])
    return found


def _opened(inputs: tuple[str, ...], name: str, config: TrainConfig) -> Any:
    if len(inputs) == 1:
        path = Path(inputs[0])
        splits = split_folders(path)
        if splits:
            return str(splits[0 if name == "train" else 1])
        arrays = (path / MANIFEST).is_file() or (path / "offsets.npy").is_file() or megatron_prefix(path) is not None
        if arrays or config.task.name is None:
            if config.data.on_bad_record != "error":
                raise OptionError(
                    f"data.on_bad_record is {config.data.on_bad_record!r}, and {path} holds tokens, which a task does "
                    "not read; leave it out"
                )
            return str(path)
    if config.task.name is None:
        raise OptionError("without a task, it is one place where tokens are stored; name a task for files of records")
    unit = config.data.text_unit
    records = open_records(
        list(inputs),
        text_unit=unit or task_class(config.task.name).text_unit,
        on_bad_record=config.data.on_bad_record,
    )
    if unit is not None and records.kind != "text":
        raise OptionError(f"data.text_unit is {unit!r}, and these records are {records.kind}, not text; leave it out")
    return records


def has_evaluation(config: TrainConfig) -> bool:
    """Return whether the configuration has evaluation data.

    These are files of their own, held-out records, or the validation split of a packed dataset.
    """
    return bool(config.data.eval) or config.data.held_out > 0 or _has_split(config)


def _has_split(config: TrainConfig) -> bool:
    return len(config.data.train) == 1 and not config.data.eval and bool(split_folders(config.data.train[0]))


class Loaders:
    """Makes the training and evaluation loaders of a run.

    Attributes:
        config: configuration of the run.
        args: `transformers.TrainingArguments` of the run.
        task: what turns records into sequences; None: the data are stored tokens.
        tokenizer: the model's tokenizer; None: it has none.
        objective: computes the loss.
        cache: folder for encoded data.
        seed: random seed of the loaders, and of the choice of held-out records.
        notes: a line about the data of each loader that was made.
    """

    def __init__(
        self, config: TrainConfig, args: Any, task: Task | None, tokenizer: Any, objective: Objective, cache: Path
    ) -> None:
        self._examples: dict[str, Examples] = {}
        self.config, self.args, self.task, self.objective, self.cache = config, args, task, objective, cache
        self.tokenizer = tokenizer
        self.seed = args.seed if args.data_seed is None else args.data_seed
        self.notes: list[str] = []

    def of(self, config: TrainConfig, args: Any) -> Loaders:
        """Return `Loaders` of the same run for a `config` with another ``[packing]``, and for other `args`.

        The data are not encoded again: the new object shares the encoded data of this one.
        """
        made = Loaders(config, args, self.task, self.tokenizer, self.objective, self.cache)
        made._examples = self._examples  # packing does not change them
        return made

    def examples(self, data: Any, name: str) -> Examples | None:
        """Return the examples of `data`, encoded at the first call; None if `data` are stored tokens.

        `name` is "train" or "eval".

        Raises:
            InputError: records cannot be read or encoded.
            StorageError: the encoded data cannot be written.
        """
        if not isinstance(data, RecordStream):
            return None
        if name not in self._examples:
            assert self.task is not None
            part = Part(share=self.config.data.held_out, seed=self.seed, held_out=name == "eval")
            if not self.config.data.held_out:
                part = Part()
            data = data.as_text(self.task.text_columns())
            settings = {**self._settings(), "read": data.settings()}
            self._examples[name] = encoded(self.task, data, self.cache, settings, part=part)
        return self._examples[name]

    def add_values(self, name: str, values: Mapping[str, NDArray[Any]]) -> None:
        """Add values per sequence to encoded examples; the loaders that are made later give them in their batches.

        `name` is "train" or "eval"; `values` has arrays with one entry per sequence, by name.
        """
        made = self._examples[name]
        added = replace(made.sequences, values={**made.sequences.values, **values})
        self._examples[name] = replace(made, sequences=added)

    def loader(self, data: Any, name: str) -> PackedLoader:
        """Return the loader of `data`: records, or a place where tokens are stored. `name` is "train" or "eval".

        A line that describes the data is added to `notes`.

        Raises:
            InputError: records or tokens cannot be read, encoded or packed.
            StorageError: the encoded data cannot be written.
        """
        options, capacity = self._options(training=name == "train"), self.config.packing.capacity
        examples = self.examples(data, name)
        if examples is not None:
            assert self.task is not None
            self.notes.append(f"{name:<8} {examples}")
            return self.task.loader(examples, capacity, **options)
        if self.task is not None:
            options["collate"] = self.task.collate
        elif isinstance(self.objective, OfTokens) and self.objective.causal:
            options["collate"] = causal
        self.notes.append(f"{name:<8} {data}")
        try:
            if self.config.data.empty == "skip" and not (Path(data) / MANIFEST).is_file():
                data = open_tokens(data, empty="skip")
                self.notes[-1] += counted({"empty_skipped": data.skipped})
            return PackedLoader(data, capacity, **options)
        except SourceError as error:
            if self.task is not None:
                raise
            raise SourceError(f"{error}; or give [task] a name: a task reads records") from error

    def _options(self, *, training: bool) -> dict[str, Any]:
        packing = self.config.packing
        options: dict[str, Any] = {"seed": self.seed, "align": packing.align, "prefetch": packing.prefetch}
        for name in ("rows", "tokens", "sequences", "token_cap"):
            if getattr(packing, name) is not None:
                options[name] = getattr(packing, name)
        options |= {"last": packing.last, "accumulation": packing.accumulation} if training else {"last": "short"}
        if training:
            options |= {"balance": packing.balance, "cost": cost_model(packing.cost), "together": packing.together}
        elif packing.rows is not None:
            options["rows"] = self.args.per_device_eval_batch_size
        return options | (packing.plan_options() if packing.capacity is not None or packing.tokens is not None else {})

    def _settings(self) -> Mapping[str, Any]:
        """Return the task, its options, ``data.empty`` and the tokenizer's fingerprint, by name.

        Two runs share the files of encoded data only if all of this is the same in both.
        """
        said = {"task": self.config.task.name, "options": dict(self.config.task.options)}
        said["empty"] = self.config.data.empty
        return {**said, "tokenizer": tokenizer_fingerprint(self.tokenizer)}


def widest(loader: PackedLoader) -> int:
    """Return the average number of tokens that a rank gets in a micro-step, rounded, at least 1; 1 if not known."""
    summary = loader.summary()
    if not isinstance(summary, Summary) or not summary.steps:
        return 1
    shape = summary.shape
    return max(round(summary.tokens / summary.steps / shape.world_size / shape.accumulation), 1)


@contextmanager
def about(field: str, why: str = "") -> Iterator[None]:
    """In a ``with`` block, begin the message of an `InputError` with `field`, the part of the configuration at fault.

    A message that begins with "packing." stays as it is. In other messages, ``over_long=`` becomes
    ``task.over_long =``, as in the configuration file, unless it follows a comma, as an argument in code does. `why` is
    added if the message is about a sequence that is longer than ``max_length``.
    """
    try:
        yield
    except InputError as error:
        if str(error).startswith("packing."):
            raise
        said = re.sub(r"(?<!, )over_long=", "task.over_long = ", str(error))
        raise type(error)(f"{field}: {said}{why if 'max_length is' in said else ''}") from error
