"""`pack_dataset`: pack data in memory into a `PackedDataset`, in one call.

It chooses how the data are read (by `nopad.open_source`, or by a task for chats and pairs of texts) and calls
`nopad.pack_corpus`. Packs are always written to a folder. Without `output`, the folder is temporary, and is removed
when the dataset is garbage-collected or the process ends.
"""

from __future__ import annotations

import copy
import os
import shutil
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from nopad.assignment import Order
from nopad.corpus import CorpusOptions, IterableSource, ReaderOptions, Source, Tokenizer, load_tokenizer, open_source
from nopad.corpus.options import Empty, OnBadRecord, OverLong
from nopad.errors import InterruptedJobError, LengthError, MissingExtraError, OptionError, SourceError
from nopad.sequences import LABELS
from nopad.store import PackedDataset, PackOptions, pack_corpus

if TYPE_CHECKING:
    from nopad.tasks import Task

__all__ = ["pack_dataset"]

_CHATS = ("messages", "conversations")


def pack_dataset(
    data: Any,
    capacity: int,
    *,
    tokenizer: Any = None,
    task: Task | None = None,
    output: str | Path | None = None,
    depth: int | None = None,
    algorithm: str = "auto",
    seed: int = 0,
    order: Order = "random",
    over_long: OverLong = "error",
    empty: Empty = "skip",
    on_bad_record: OnBadRecord = "error",
    special_tokens: bool = True,
    vocab_size: int | None = None,
    text_field: str | None = None,
    text_pair: str | None = None,
    ids_field: str | None = None,
    carry: Sequence[str] | Literal["auto"] = "auto",
    mask_field: str | None = "auto",
    pad_id: int | None = None,
) -> PackedDataset:
    """Pack data that are in memory, and return the packed dataset.

    No record is left out silently. A record that is bad or too long is an error unless an option says otherwise, and a
    warning counts the empty ones. ``dataset.manifest.counts`` and the dataset's `repr` say how many records were left
    out, cut or split.

    Args:
        data: a `datasets.Dataset` or `IterableDataset`; a list of dicts, or an iterator of them; a list of lists of
            token ids; a list of texts; a table of pandas, polars or pyarrow; or what `nopad.open_source` opened.
            Records have ``input_ids``, a ``text``, or a chat: ``messages``, ``conversations``, or ``prompt`` and
            ``completion``.
        capacity: maximum number of tokens in a pack.
        tokenizer: for texts, anything that `nopad.load_tokenizer` takes; for chats and pairs of texts, a tokenizer from
            transformers; not needed for ready-made ids.
        task: a task of `nopad.tasks` that turns the records into sequences with labels, such as
            ``Classification(tokenizer, ["no", "yes"])``. None: `nopad.tasks.Chat` for chats; texts and ids are packed
            as `nopad pack` does.
        output: folder for the dataset: new, empty, or left by an earlier run of the same call, which is then resumed.
            None: a temporary folder, which is removed when the dataset is garbage-collected, or when the process ends.
        depth: maximum number of sequences in a pack; None: unlimited.
        algorithm: the packing algorithm, as in `nopad.pack`.
        seed: random seed, which decides which sequences share packs and the order of the packs, as in `nopad.pack`.
        order: order of the packs, as in `nopad.pack`: "random", or "source" to stay close to the order of the records.
        over_long: what happens to records longer than `capacity`: "error", "truncate", "split" or "drop"
            (`CorpusOptions`). If a task reads the records, only the values that it supports.
        empty: what happens to empty records, as in `CorpusOptions`; not with a task.
        on_bad_record: what happens to bad records, as in `CorpusOptions`; not with a task.
        special_tokens: whether the tokenizer's special tokens are added to texts, as in `CorpusOptions`; not with a
            task.
        vocab_size: a record with a ready-made id of this number or above is bad, as in `CorpusOptions`; not with a
            task.
        text_field: column of the text; None: ``text``.
        text_pair: column of the second text of each record; `text_field` is that of the first. The tokenizer joins both
            into one sequence, with token types if it has them.
        ids_field: column of ready-made ids; None: ``input_ids``.
        carry: names of further columns to pack. "auto": with ids, all columns that can be packed; with texts, the
            column ``label`` if it is a number.
        mask_field: column that is 0 at padding tokens, which are removed, as in `ReaderOptions`.
        pad_id: id of padding tokens, which are removed, as in `ReaderOptions`.

    Raises:
        SourceError: the data are of a kind that cannot be read, hold two kinds of content, or lack a column.
        RecordError: a record is bad, or longer than `capacity`; the message says which.
        LengthError: a record is longer than `capacity`, and a task reads the records.
        OptionError: an option is invalid, or does not apply to these data.
        OutputError: `output` has other content.
        MissingExtraError: torch or transformers is not installed, and the data are chats or pairs of texts.

    >>> import nopad
    >>> dataset = nopad.pack_dataset([{"input_ids": [7, 8, 9], "label": 1}, {"input_ids": [5], "label": 0}], 4)
    >>> dataset
    PackedDataset(1 pack of at most 4 tokens; 2 sequences, 4 tokens, 0.00% padding; per token: input_ids; per sequence:
    label; in a temporary folder)
    >>> dataset[0].input_ids.tolist(), dataset[0]["label"].tolist()
    ([7, 8, 9, 5], [1, 0])
    """
    packing = PackOptions(depth=depth, algorithm=algorithm, seed=seed, order=order)
    corpus = CorpusOptions(
        capacity=capacity,
        special_tokens=special_tokens,
        over_long=over_long,
        empty=empty,
        on_bad_record=on_bad_record,
        vocab_size=vocab_size,
    )
    reading = ReaderOptions(
        text_field=text_field, ids_field=ids_field, carry=carry, mask_field=mask_field, pad_id=pad_id
    )
    folder = tempfile.mkdtemp(prefix="nopad-") if output is None else output
    try:
        source, corpus, words = _source(data, corpus, reading, tokenizer, task, text_pair)
        made = pack_corpus(source, folder, corpus, tokenizer=words, packing=packing)
        dataset = PackedDataset(folder, owned=output is None)
    except BaseException as error:
        if output is None:
            shutil.rmtree(folder, ignore_errors=True)
            if isinstance(error, InterruptedJobError):
                raise KeyboardInterrupt("nothing is kept; with output= the same call goes on") from None
        if isinstance(error, LengthError) and (task is None or task.max_length is None):
            raise LengthError(str(error).replace("max_length", "capacity")) from error  # as the task calls it
        raise
    if skipped := made.counts["empty_skipped"]:
        warnings.warn(
            f"{skipped:,} of {made.source['records']:,} records have no token and are left out; choose empty='error' "
            "to find them",
            stacklevel=2,
        )
    return dataset


def _source(
    data: Any,
    corpus: CorpusOptions,
    reading: ReaderOptions,
    tokenizer: Any,
    task: Task | None,
    text_pair: str | None,
) -> tuple[Source, CorpusOptions, Tokenizer | None]:
    """Return what reads the data, how its records become sequences, and the tokenizer that this needs."""
    data, first = _seen(data)
    if task is not None or text_pair is not None or (_no_field(reading) and _is_chat(first)):
        source = _of_task(data, first, corpus, reading, tokenizer, task, text_pair)
        return source, CorpusOptions(capacity=corpus.capacity), None
    source = data if isinstance(data, Source) else open_source(data, _with_labels(reading, first))
    return source, corpus, None if source.kind == "ids" or tokenizer is None else load_tokenizer(tokenizer)


def _seen(data: Any) -> tuple[Any, Mapping[str, Any] | None]:
    """Return the data as something that is read as records, and the first record if it is a dict.

    Raises:
        SourceError: the data are a path, or there is no record.
    """
    if isinstance(data, Source):
        return data, None
    if isinstance(data, str | os.PathLike):
        raise SourceError(
            f"{os.fspath(data)!r} is a path, and pack_dataset takes data in memory; give nopad.open_source(path)"
        )
    data = _as_dataset(data)
    if isinstance(data, Mapping) or callable(data):
        return data, None  # splits, columns or named inputs: `open_source` knows
    if hasattr(data, "with_format"):
        first = next(iter(data), None)
    elif isinstance(data, Iterator):
        first = next(data, None)
        data = chain([] if first is None else [first], data)
    elif isinstance(data, Sequence):
        first = data[0] if len(data) else None
    else:
        return data, None
    if first is None:
        raise SourceError("there is no record, so there is nothing to pack")
    if isinstance(first, str):
        return IterableSource(data), None
    if isinstance(first, int | float | np.number):
        raise SourceError("these are numbers, and a list of ids is one sequence; give a list of such lists")
    return data, first if isinstance(first, Mapping) else None


def _as_dataset(data: Any) -> Any:
    """Return a table of pandas, polars or pyarrow as a `datasets.Dataset`; other data as they are."""
    module = type(data).__module__.partition(".")[0]
    if module not in ("pandas", "polars", "pyarrow"):
        return data
    try:
        import datasets
    except ImportError as error:
        raise MissingExtraError(f"a table of {module} is read as a dataset: pip install datasets") from error
    import pyarrow as pa

    if module == "pyarrow":
        return datasets.Dataset(pa.Table.from_batches([data]) if isinstance(data, pa.RecordBatch) else data)
    if module == "pandas":
        return datasets.Dataset.from_pandas(data, preserve_index=False)
    return datasets.Dataset.from_polars(data)


def _no_field(reading: ReaderOptions) -> bool:
    return reading.text_field is None and reading.ids_field is None


def _is_chat(first: Mapping[str, Any] | None) -> bool:
    """Whether a record is a chat.

    Raises:
        SourceError: it is a text too.
    """
    if first is None or "input_ids" in first:
        return False
    chats = [name for name in _CHATS if name in first]
    if not chats and not ("prompt" in first and "completion" in first):
        return False
    if "text" in first:
        raise SourceError(
            f"records have a text and a chat ({', '.join(chats) or 'prompt, completion'}); say which: "
            "text_field='text', or task=nopad.tasks.Chat(tokenizer)"
        )
    return True


def _labels_in(first: Mapping[str, Any] | None) -> list[str]:
    """Return the column of labels, if the first record has one that is a number."""
    found = [name for name in LABELS if name in (first or {})]
    value = np.asarray(first[found[0]]) if first is not None and found else None
    return found[:1] if value is not None and not value.ndim and value.dtype.kind in "biuf" else []


def _with_labels(reading: ReaderOptions, first: Mapping[str, Any] | None) -> ReaderOptions:
    """Return the options with which texts carry their labels too."""
    texts = reading.text_field is not None or (
        reading.ids_field is None and first is not None and "text" in first and "input_ids" not in first
    )
    return replace(reading, carry=_labels_in(first)) if texts and reading.carry == "auto" else reading


def _of_task(
    data: Any,
    first: Mapping[str, Any] | None,
    corpus: CorpusOptions,
    reading: ReaderOptions,
    tokenizer: Any,
    task: Task | None,
    text_pair: str | None,
) -> Source:
    """Return the sequences that a task makes of the records as a source.

    Raises:
        OptionError: an option is for texts and ready-made ids only.
        SourceError: the data are no records.
    """
    from nopad.tasks.source import TaskSource

    if isinstance(data, Source) or (first is None and not callable(data)):
        raise SourceError(f"a task is for records, and these are {type(data).__name__}; give dicts of columns")
    _refuse(corpus, {"capacity", "over_long"})
    _refuse(reading, {"carry"} if text_pair is None else {"carry", "text_field"})
    made = _task(corpus, reading, tokenizer, task, text_pair)
    labels = _labels_in(first) if text_pair is not None else []
    carry = labels if reading.carry == "auto" else reading.carry
    known = (*carry, *made.text_columns(), *_CHATS, "tools")
    left_out = [] if task is not None else [name for name in first or () if name not in known]
    return TaskSource(made, data, labels=text_pair is None, carry=carry, left_out=left_out)


def _task(
    corpus: CorpusOptions, reading: ReaderOptions, tokenizer: Any, task: Task | None, text_pair: str | None
) -> Task:
    """Return the task, with the capacity as its longest sequence."""
    from nopad.tasks import Chat, Classification, Task

    most: dict[str, Any] = {"max_length": corpus.capacity, "over_long": corpus.over_long}
    if task is None and text_pair is None:
        return Chat(tokenizer, **most)
    if task is None:
        return Classification(tokenizer, text=reading.text_field or "text", pair=text_pair, **most)
    if not isinstance(task, Task):
        raise OptionError(f"task is a {type(task).__name__}; give one of nopad.tasks, such as Chat(tokenizer)")
    if text_pair is not None or (tokenizer is not None and tokenizer is not task.tokenizer):
        raise OptionError("the task says which columns it reads, and by which tokenizer; leave them out here")
    if task.max_length is not None:
        if task.max_length > corpus.capacity or corpus.over_long not in ("error", task.over_long):
            raise OptionError(
                f"the task has max_length={task.max_length} and over_long={task.over_long!r}, and packs "
                f"capacity={corpus.capacity} and over_long={corpus.over_long!r}; say it in one place"
            )
        return task
    if corpus.over_long not in task.policies:
        raise OptionError(
            f"over_long is {corpus.over_long!r}; for {task.name} it is {' or '.join(map(repr, task.policies))}"
        )
    limited = copy.copy(task)
    limited.max_length, limited.over_long = corpus.capacity, corpus.over_long
    return limited


def _refuse(options: CorpusOptions | ReaderOptions, known: set[str]) -> None:
    """Refuse options that a task would ignore: those beside `known` that have not their default."""
    for field in fields(options):
        if field.name not in known and getattr(options, field.name) != field.default:
            raise OptionError(
                f"{field.name} is for texts and ready-made ids, and here a task makes the sequences; leave it out, or "
                "give the task its own options: task=nopad.tasks.Chat(tokenizer, ...)"
            )
