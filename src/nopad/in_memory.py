"""`pack_dataset`: pack data in memory into a `PackedDataset`, in one call.

The records are read by the rules of `nopad pack` (`nopad.corpus.content`), or by a task, and then packed by
`nopad.pack_corpus`. Packs are always written to a folder. Without `output`, the folder is temporary, and is removed
when the dataset is garbage-collected or the process ends.
"""

from __future__ import annotations

import copy
import os
import shutil
import tempfile
import warnings
from collections.abc import Mapping, Sequence, Set
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from nopad.assignment import Order
from nopad.corpus import CorpusOptions, ReaderOptions, Source, Tokenizer, load_tokenizer, open_source
from nopad.corpus.content import Content
from nopad.corpus.held import held_in_memory
from nopad.corpus.options import Empty, OnBadRecord, OverLong
from nopad.corpus.transformers_tokenizer import load_transformers_tokenizer
from nopad.errors import InterruptedJobError, LengthError, OptionError, SourceError
from nopad.options import names_in, shown
from nopad.store import PackedDataset, PackOptions, pack_corpus

if TYPE_CHECKING:
    from nopad.tasks import Task

__all__ = ["pack_dataset"]


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
    text_field: str | Sequence[str] | None = None,
    text_pair: tuple[str, str] | None = None,
    chat: bool | Mapping[str, Any] | None = None,
    ids_field: str | None = None,
    carry: Sequence[str] | Literal["auto"] = "auto",
    mask_field: str | None = "auto",
    pad_id: int | None = None,
) -> PackedDataset:
    """Pack data that are in memory, and return the packed dataset.

    Records become sequences exactly as in the command ``nopad pack``: with the same tokens and labels, and the same
    records are refused. No record is left out silently: a record that is bad or too long is an error unless an option
    says otherwise, and a warning counts the empty records that are left out. ``dataset.manifest.counts`` and the
    ``repr`` of the dataset say how many records were left out, cut or split; the ``repr`` also names the columns that
    are not packed.

    Args:
        data: one of these:

            * a `datasets.Dataset` or `IterableDataset`
            * a list of dicts, an iterator of dicts, or a function that returns such an iterator
            * a list of lists of token ids, or a list of texts
            * a table of pandas, polars or pyarrow, or one column of it, with texts or lists of token ids
            * a source from `nopad.open_source`
            * a dict with several of these by name; their records are counted by name; not allowed with a task

            Records have ``input_ids``, a ``text``, or a chat: ``messages``, ``conversations``, or ``prompt`` and
            ``completion``.
        capacity: maximum number of tokens in a pack.
        tokenizer: for texts, anything that `nopad.load_tokenizer` takes. For chats and pairs of texts, a tokenizer from
            transformers, or the folder or hub name of one. Not needed for ready-made ids.
        task: a task of `nopad.tasks` that turns the records into sequences with labels, such as
            ``Classification(tokenizer, ["no", "yes"])``. None: texts, pairs, chats and ids are read as `nopad pack`
            reads them.
        output: folder for the dataset: new, empty, or left by an earlier run of the same call, which is then resumed.
            None: a temporary folder, which is removed when the dataset is garbage-collected, or when the process ends.
        depth: maximum number of sequences in a pack; None: unlimited.
        algorithm: the packing algorithm, as in `nopad.pack`.
        seed: random seed, used only if `order` is "random". It decides the order of the packs. Unless `algorithm` is an
            arrival-order algorithm, it also decides which of several sequences of equal length goes into which pack.
        order: order of the packs, as in `nopad.pack`: "random", or "source" to stay close to the order of the records.
        over_long: what happens to records longer than `capacity`: "error", "truncate", "split" or "drop"
            (`CorpusOptions`). Chats and pairs cannot be split. A task allows the values in its attribute ``policies``.
        empty: what happens to empty records, as in `CorpusOptions`; not allowed with a task.
        on_bad_record: what happens to bad records, as in `CorpusOptions`; not allowed with a task.
        special_tokens: whether the tokenizer's special tokens are added to texts, as in `CorpusOptions`; False is not
            allowed with chats, pairs or a task, which always add their own.
        vocab_size: a record with a ready-made id of this number or above is bad, as in `CorpusOptions`. It has no
            effect on texts, and is not allowed with chats, pairs or a task.
        text_field: column of the text, or a list of columns, which are joined by an empty line; None: ``text``.
        text_pair: two columns of texts. The tokenizer joins them into one sequence, with token types if it has them.
        chat: whether the records are chats; None: the first record decides. A dict means True and sets options:
            ``last_only``, ``rewriting``, ``end_of_turn``, ``template`` and ``roles``, as in `nopad.tasks.Chat`.
        ids_field: column of ready-made ids; None: ``input_ids``.
        carry: names of further columns to pack. "auto": for ids, all columns that can be packed; for texts, the column
            ``labels``, ``label`` or ``label_ids`` if it holds numbers; for chats or with a task, none.
        mask_field: column that is 0 at padding tokens, which are removed. "auto": ``attention_mask``, unless it
            holds one number or boolean per record, or there is a `pad_id`; None: no column.
        pad_id: id of padding tokens, which are removed at both ends of a record; None: no id is padding.

    Raises:
        SourceError: the data are of a kind that cannot be read, have no record, or lack a column that is needed; they
            are a dict of inputs by name, and there is a task; some of these inputs hold texts and others ready-made
            ids; or your function or iterator fails.
        RecordError: a record is bad, or longer than `capacity`, and the message says which; or no record gives a
            sequence.
        LengthError: a task reads the records and refuses one, for example because it is longer than the task's
            `max_length` (by default `capacity`).
        OptionError: an option is invalid, or does not apply to these data; or they are texts, and there is no
            `tokenizer`.
        FormatError: the tokenizer cannot be read, or cannot encode a text.
        OutputError: `output` has other content, another process is writing there, or the unfinished job there was
            started with other data or options.
        StorageError: the disk is full, or a write failed.
        InterruptedJobError: SIGINT (Ctrl-C) was received, and `output` is given. Without `output`, KeyboardInterrupt is
            raised instead, and nothing is kept.
        MissingExtraError: a package is not installed that the data or the tokenizer need: torch and transformers for
            chats and pairs of texts, `datasets` for a table, `huggingface_hub` for a name on the hub.

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
    content = _content(text_field, text_pair, chat, ids_field, pad_id)
    reading = ReaderOptions(
        text_field=content.text_field,
        ids_field=ids_field,
        carry=carry,
        mask_field=mask_field,
        pad_id=pad_id,
        find_labels=True,
    )
    if not isinstance(output, str | os.PathLike | None):
        raise OptionError(f"output is {shown(output)}; it is the path of a folder, or None")
    folder = tempfile.mkdtemp(prefix="nopad-") if output is None else output
    try:
        source, corpus, words = _source(data, corpus, reading, tokenizer, task, content)
        made = pack_corpus(source, folder, corpus, tokenizer=words, packing=packing)
        dataset = PackedDataset(folder, owned=output is None)
    except BaseException as error:
        if output is None:
            shutil.rmtree(folder, ignore_errors=True)
            if isinstance(error, InterruptedJobError):
                raise KeyboardInterrupt("nothing is kept; with output= the same call goes on") from None
        if isinstance(error, LengthError) and (task is None or task.max_length is None):
            raise LengthError(str(error).replace("max_length", "capacity")) from error  # a task says max_length
        raise
    if skipped := made.counts["empty_skipped"]:
        warnings.warn(
            f"{skipped:,} of {made.source['records']:,} records have no token and are left out; choose empty='error' "
            "to find them",
            stacklevel=2,
        )
    return dataset


def _content(
    text_field: str | Sequence[str] | None,
    text_pair: tuple[str, str] | None,
    chat: bool | Mapping[str, Any] | None,
    ids_field: str | None,
    pad_id: int | None,
) -> Content:
    """Return the `Content` that these options of `pack_dataset` state: which columns of a record are read, and as what.

    Raises:
        OptionError: an option is invalid, or options contradict each other.
    """
    named = () if text_field is None else (text_field,) if isinstance(text_field, str) else _ordered(text_field)
    if named is None:
        raise OptionError(f"text_field is {shown(text_field)}; it is the name of a column, a list of names, or None")
    pair = None if text_pair is None else _ordered(text_pair)
    if text_pair is not None and (pair is None or len(pair) != 2):
        raise OptionError(f"text_pair is {shown(text_pair)}; it is two columns, such as ('question', 'answer')")
    options = chat if isinstance(chat, Mapping) else {}
    if not isinstance(chat, bool | Mapping | None):
        raise OptionError(f"chat is {shown(chat)}; it is True, False, None, or a dict of options")
    others = {"ids_field": ids_field, "pad_id": pad_id}
    return Content(
        fields=named,
        pair=None if pair is None else (pair[0], pair[1]),
        chat=True if isinstance(chat, Mapping) else chat,
        chat_options=options,
        other=next((name for name, value in others.items() if value is not None), ""),
    )


def _ordered(names: Any) -> tuple[str, ...] | None:
    """Return `names` as a tuple; None if they are not strings in an order."""
    return None if isinstance(names, Set) else names_in(names)


def _source(
    data: Any, corpus: CorpusOptions, reading: ReaderOptions, tokenizer: Any, task: Task | None, content: Content
) -> tuple[Source, CorpusOptions, Tokenizer | None]:
    """Return three arguments of `pack_corpus` for these data: ``(source, corpus, tokenizer)``.

    If a task makes the sequences, the `corpus` returned has the `capacity` of the one given, and the defaults of all
    other options. Otherwise, it is the one given. The tokenizer is None if no tokenizer was given, if the source has
    ready-made ids, or if a task makes the sequences.

    Raises:
        OptionError: an option does not apply to these data, or they are texts and there is no tokenizer.
        SourceError: the data are a path, hold no record, or are of another kind that cannot be read; or named inputs
            are not all of one kind.
        FormatError: the tokenizer cannot be read.
        MissingExtraError: a package that the data or the tokenizer need is not installed.
    """
    data, first = held_in_memory(data, reading)
    if task is not None:
        return (
            _of_task(data, first, corpus, reading, tokenizer, task, content),
            CorpusOptions(capacity=corpus.capacity),
            None,
        )
    if any(isinstance(one, Source) for one in (data.values() if isinstance(data, Mapping) else [data])):
        _refuse(replace(reading, find_labels=False), set(), "for nopad.open_source, which opened these data")
        if content != Content():
            raise OptionError("text_field=, text_pair= and chat= are for records; give them to nopad.open_source")
    encoder = content.encoder(lambda: first, lambda: _of_transformers(tokenizer), corpus, "memory")
    source = open_source(data, reading, encoder=encoder)
    if source.kind == "text" and tokenizer is None:
        raise OptionError("these are texts, and there is no tokenizer; give tokenizer=, that of the model")
    return source, corpus, None if source.kind == "ids" or tokenizer is None else load_tokenizer(tokenizer)


def _of_transformers(tokenizer: Any) -> Any:
    """Return the tokenizer for chats and pairs; None if `tokenizer` is None.

    A folder or a name is loaded by transformers; a tokenizer object is checked and returned.

    Raises:
        OptionError: the object is not a tokenizer of transformers.
        FormatError: there is no such tokenizer, transformers cannot read it, or it has only special tokens.
        MissingExtraError: transformers is not installed.
    """
    if tokenizer is None:
        return None
    if isinstance(tokenizer, str | os.PathLike):
        return load_transformers_tokenizer(os.fspath(tokenizer))
    from nopad.tasks.task import check_tokenizer

    return check_tokenizer(tokenizer)


def _of_task(
    data: Any,
    first: Mapping[str, Any] | None,
    corpus: CorpusOptions,
    reading: ReaderOptions,
    tokenizer: Any,
    task: Task,
    content: Content,
) -> Source:
    """Return a source of the sequences that a task makes from the records.

    `first` is the first record of `data`; None: it is not a dict, or not known before the data are read. `corpus`,
    `reading` and `content` hold options of `pack_dataset`. With a task, only the capacity, `over_long` and `carry` may
    differ from their defaults.

    Raises:
        OptionError: an option is for texts and ready-made ids only, or contradicts the task.
        SourceError: the records are not dicts of columns, or the first one cannot be seen before the data are read; or
            the data are a `Source`, or a dict of named inputs.
    """
    from nopad.tasks.source import TaskSource

    if isinstance(data, Mapping):
        names = ", ".join(map(str, data))
        raise SourceError(
            f"a task reads one input, and these are named ones ({names}); give the records of one of them, or all in "
            "one list"
        )
    if isinstance(data, Source) or first is None:
        raise SourceError(f"a task is for records, and these are {type(data).__name__}; give dicts of columns")
    told = (
        "for texts and ready-made ids, and here a task makes the sequences; leave it out, or give the task its own "
        "options: task=nopad.tasks.Chat(tokenizer, ...)"
    )
    _refuse(corpus, {"capacity", "over_long"}, told)
    _refuse(replace(reading, find_labels=False), {"carry"}, told)
    if content != Content():
        raise OptionError("the task says which columns it reads; leave text_field=, text_pair= and chat= out")
    carry = () if reading.carry == "auto" else reading.carry
    return TaskSource(_limited(task, corpus, tokenizer), data() if callable(data) else data, carry=carry)


def _limited(task: Task, corpus: CorpusOptions, tokenizer: Any) -> Task:
    """Return the task with a `max_length`: the task itself if its `max_length` is set, otherwise a copy of it.

    The copy gets the capacity in `corpus` as its `max_length`, and `over_long` from `corpus`.

    Raises:
        OptionError: `task` is not a task; `tokenizer` is given, and is not the task's; the task has no `max_length`,
            and does not allow the `over_long` in `corpus`; the task's `max_length` is above the capacity; or the task
            has a `max_length`, and the `over_long` in `corpus` is neither "error" nor that of the task.
    """
    from nopad.tasks import Task

    if not isinstance(task, Task):
        raise OptionError(
            f"task is a {type(task).__name__}; give one of nopad.tasks, such as Classification(tokenizer)"
        )
    if tokenizer is not None and tokenizer is not task.tokenizer:
        raise OptionError("the task has a tokenizer of its own; leave tokenizer= out")
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


def _refuse(options: CorpusOptions | ReaderOptions, known: set[str], told: str) -> None:
    """Refuse options that differ from their defaults, except those named in `known`.

    Raises:
        OptionError: there is such an option; the message ends with `told`, which says what the option is for.
    """
    for field in fields(options):
        if field.name not in known and getattr(options, field.name) != field.default:
            raise OptionError(f"{field.name} is {told}")
