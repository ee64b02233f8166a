"""``nopad predict``: classify, embed, score, or find answers in any number of records, and write Parquet files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nopad.cli.inputs import passed_over
from nopad.cli.monitor import Bars
from nopad.cli.options import EmptyPolicy, Force, OnBadRecord, TextUnit, parse_pairs
from nopad.cli.render import console
from nopad.cli.standard_input import StdinFormat, from_stdin
from nopad.cli.starting_over import way_out
from nopad.corpus import options as corpus
from nopad.corpus.network import hub_in_reach, not_had
from nopad.errors import MissingExtraError, OptionError, install
from nopad.files import is_model_folder
from nopad.options import parse_integer
from nopad.store.starting_over import PREDICTIONS, replaced
from nopad.wording import counted, first_line

if TYPE_CHECKING:
    from nopad.corpus.record_stream import RecordStream
    from nopad.tasks import PredictionFiles, Task

__all__ = ["predict"]

TASK = "Task"
Inputs = Annotated[
    list[str],
    typer.Argument(
        metavar="INPUT...",
        help="Records: files (JSON Lines, JSON, Parquet, Arrow, CSV, TSV, text), folders or URLs of them, hf:NAME, - "
        "for standard input.",
    ),
]
Out = Annotated[
    Path,
    typer.Option("--out", "-o", metavar="FOLDER", help="A new or empty folder, or that of an interrupted equal call."),
]
Model = Annotated[str, typer.Option("--model", "-m", metavar="MODEL", help="A folder with the model, or a hub name.")]
TaskName = Annotated[
    str | None,
    typer.Option(
        "--task",
        metavar="NAME",
        help="What the model does: classify, tag, embed, answer, ... Default: what it was trained for.",
    ),
]
Text = Annotated[str | None, typer.Option("--text", metavar="COLUMN", help="Column of the text.", rich_help_panel=TASK)]
Pair = Annotated[
    str | None, typer.Option("--pair", metavar="COLUMN", help="Column of the second text.", rich_help_panel=TASK)
]
Labels = Annotated[
    str | None,
    typer.Option(
        "--labels",
        metavar="A,B,...",
        help="Names of the classes, in the model's order. Default: the model's.",
        rich_help_panel=TASK,
    ),
]
MaxLength = Annotated[
    int | None,
    typer.Option(
        "--max-length",
        metavar="N",
        help="Most tokens of a sequence. Default: what a sentence-transformers folder says, or the model's positions.",
        rich_help_panel=TASK,
    ),
]
OverLong = Annotated[
    str | None,
    typer.Option(
        "--over-long",
        metavar="POLICY",
        help="What happens to longer ones: error (default), truncate or drop; with some tasks also split.",
        rich_help_panel=TASK,
    ),
]
More = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="Any other option of the task. Repeatable.", rich_help_panel=TASK),
]
Keep = Annotated[
    list[str] | None,
    typer.Option(
        "--keep", metavar="COLUMN", help="An input column to write too, or NEW=COLUMN to rename it. Repeatable."
    ),
]
Capacity = Annotated[
    int | None,
    typer.Option("--capacity", "-c", metavar="N", help="Most tokens of a pack. Default: by the model's positions."),
]
RowsAtATime = Annotated[
    int | None,
    typer.Option("--rows", metavar="N", help="Packs run at a time. Default: as many as hold about 4,096 tokens."),
]
BatchRecords = Annotated[
    int, typer.Option("--batch-records", metavar="N", help="Records read, packed and run at a time.")
]
PartRecords = Annotated[
    int,
    typer.Option(
        "--part-records", metavar="N", help="Records of an output file; a killed job goes on after its last whole file."
    ),
]
PrecisionName = Annotated[
    str | None,
    typer.Option(
        "--precision",
        metavar="NAME",
        help="Compute in bfloat16 (fast on CPUs with AMX, on GPUs) or int8 (on CPUs, fast with VNNI or AMX). Slower "
        "than float32 elsewhere. Default: as the model is.",
    ),
]
Device = Annotated[
    str | None, typer.Option("--device", metavar="NAME", help="Such as cuda:0. Default: a GPU if there is one.")
]


def predict(
    inputs: Inputs,
    out: Out,
    model: Model,
    task: TaskName = None,
    text: Text = None,
    pair: Pair = None,
    labels: Labels = None,
    max_length: MaxLength = None,
    over_long: OverLong = None,
    option: More = None,
    keep: Keep = None,
    text_unit: TextUnit = "line",
    empty: EmptyPolicy = "skip",
    on_bad_record: OnBadRecord = "error",
    stdin_format: StdinFormat = None,
    capacity: Capacity = None,
    rows: RowsAtATime = None,
    batch_records: BatchRecords = 1000,
    part_records: PartRecords = 10_000,
    precision: PrecisionName = None,
    device: Device = None,
    force: Force = False,
) -> None:
    """Predict any number of records with packing, into Parquet files in input order; run again to resume.

    Needs the extra torch: in a clone, pip install -e '.[torch]'.

    Examples:
      nopad predict reviews.jsonl -o out --task classify --model path/to/model --text review --keep id

      nopad predict titles.parquet -o vectors --task embed --model path/to/model --text title --over-long truncate

      nopad predict notes/ -o vectors --task embed --model path/to/model --text-unit file --over-long truncate

      nopad predict pairs.csv -o out --task regress --model path/to/model --text first --pair second

      nopad predict texts/ -o out --task causal --model path/to/model --capacity 4096

      nopad predict new.jsonl -o out --model what/nopad/train/wrote
    """
    given = {"text": text, "pair": pair, "labels": _labels(labels), "max_length": max_length, "over_long": over_long}
    options, kept = _options(given, option), _kept(keep or [])
    sizes: dict[str, Any] = {"capacity": capacity, "rows": rows}
    sizes |= {"batch_records": batch_records, "part_records": part_records}
    with Bars() as monitor:
        monitor.stage("loading the model", None, "")
        reading: dict[str, Any] = {"text_unit": text_unit, "on_bad_record": on_bad_record}
        records, made, loaded = _loaded(from_stdin(inputs, stdin_format), model, task, options, empty, reading)
        loaded, alike = _lowered(loaded, precision)
        loaded = _placed(loaded, device)
        if records.kind == "text":
            kept.setdefault("path", "path")
        from nopad.tasks import predict_files

        with way_out(out, PREDICTIONS):
            job: dict[str, Any] = {"keep": kept, "monitor": monitor, **sizes}

            def files(place: Path) -> PredictionFiles:
                return predict_files(made, loaded, records, place, **job)

            found = replaced(out, PREDICTIONS, files) if force else files(out)
    _say(replace(found, folder=out), made, records, text_unit)
    if alike is not None:
        told = f"outputs of random tokens have a cosine of at least {alike:.5f} with those before"
        console().print(f"  {precision}: {told}", markup=False, soft_wrap=True)


def _options(given: dict[str, Any], option: list[str] | None) -> dict[str, Any]:
    """Return the options of the task, by name.

    `given` has those that have a flag of their own (None: not given), and `option` the values of ``--set``.

    Raises:
        OptionError: an option is given both ways; or an entry of `option` is not NAME=VALUE, or repeats the name of an
            earlier entry.
    """
    options = {name: value for name, value in given.items() if value is not None}
    for name, value in parse_pairs("--set", "prompt_name=query", option).items():
        if name in options:
            raise OptionError(f"{name} is given twice, as --{name.replace('_', '-')} and by --set")
        options[name] = value
    return options


def _loaded(
    inputs: list[str], model: str, task: str | None, options: dict[str, Any], empty: str, reading: dict[str, Any]
) -> tuple[RecordStream, Task, Any]:
    """Open the records, and load the task and its model; return (records, task, model).

    Args:
        inputs: the records, as given on the command line.
        model: a folder or a name on the hub.
        task: the value of ``--task``; None: the task for which the model was trained.
        options: options of the task, by name.
        empty: what to do with records that have no token.
        reading: options of `open_records`, by name.

    Raises:
        MissingExtraError: torch or transformers, or a package that an input needs, is not installed.
        OptionError: a `text_unit` other than "line" is given, and the files are not text; `empty` is not "skip", and
            the task has no such option; no task is given or stored; there is no such task or option; an option has an
            invalid value; or options do not match the model.
        FormatError: the model cannot be loaded, or the task stored with it is damaged.
        SourceError: the records cannot be opened.
        UnsupportedModelError: nopad refuses models of this type.
    """
    try:
        import torch  # noqa: F401
        import transformers  # noqa: F401
    except ImportError as error:
        raise MissingExtraError(f"running models needs {error.name}; {install('torch')}") from error
    from nopad.corpus import open_records
    from nopad.tasks.registry import load_task, options_of, task_class

    name, options = _as_trained(task, model, options)
    if "empty" in options_of(task_class(name)):
        options = {**options, "empty": empty}
    elif empty != "skip":
        raise OptionError(f"--empty is {empty}, and the task {name} has no choice about it; leave it out")
    records = open_records(inputs, paths=True, **reading)
    if reading["text_unit"] != "line" and records.kind != "text":
        raise OptionError(f"--text-unit is of text files, and these records are {records.kind}; leave it out")
    return records, *load_task(name, model, options)


def _lowered(loaded: Any, precision: str | None) -> tuple[Any, float | None]:
    """Return the model `loaded` in lower precision, and how much its outputs agree with the original ones.

    The agreement is the smallest cosine similarity that `nopad.model.precision.agreement` finds. If `precision` is
    None, return `loaded` and None.
    """
    if precision is None:
        return loaded, None
    from nopad.model.precision import agreement, lowered

    made = lowered(loaded, precision)  # type: ignore[arg-type]
    return made, agreement(loaded, made)


def _placed(loaded: Any, device: str | None) -> Any:
    """Return the model on `device`; if that is None, on a GPU if there is one, else on the CPU.

    Raises:
        OptionError: the model cannot be put on the device.
    """
    import torch

    try:
        return loaded.to(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    except (RuntimeError, ValueError, AssertionError) as error:
        raise OptionError(f"the model cannot be put on {device!r} ({first_line(error)})") from error


def _as_trained(task: str | None, model: str, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the name of the task, and its options.

    Training stores its task and options in the model's folder. If `task` is the stored task or None, the stored options
    are added to `options`; an option that `options` has already keeps its value. If `task` is another one, nothing is
    added.

    Raises:
        OptionError: no task is given, and none is stored.
        FormatError: the stored task is damaged; or no task is given, and there is no such model.
    """
    from nopad.tasks.settings import stored_task

    stored = stored_task(model)
    if task is None and stored is None:
        here = is_model_folder(model)
        if not here:
            _check_on_hub(model)
        why = "does not say what it was trained for" if here else "is no folder here that could tell"
        raise OptionError(f"--task is missing, and {model} {why}; give --task, such as --task classify")
    if stored is None or task not in (None, stored[0]):
        assert task is not None
        return task, options
    return stored[0], {**stored[1], **options}


def _check_on_hub(model: str) -> None:
    """Check that the Hugging Face hub, or its cache here, has a model of this name.

    Raises:
        FormatError: it has none, or cannot be reached.
    """
    from transformers import AutoConfig

    with hub_in_reach() as online:
        try:
            AutoConfig.from_pretrained(model)
        except Exception as error:  # the hub has one class for each cause
            raise not_had(model, error, online) from error


def _say(found: PredictionFiles, task: Task, inputs: RecordStream, text_unit: corpus.TextUnit) -> None:
    """Print the numbers of records and sequences, the files in folders that were not read, and the output folder."""
    screen = console()
    from nopad.tasks.examples import counted as by_name

    read, files = counted(found.records, "record"), len(inputs.inventory())
    if inputs.kind == "text" and text_unit == "line" and files > 1:
        read += f" (lines of {files:,} files; --text-unit file makes one of each)"
    read += by_name(found.counts)
    if task.max_length is not None:
        read = read.replace(" truncated", f" truncated to {counted(task.max_length, 'token')}")
    line = f"{read}; {counted(found.sequences, 'sequence')}, {counted(found.tokens, 'token')}"
    screen.print(f"  {line}", highlight=False)
    if inputs.ignored:
        screen.print(f"  {passed_over(inputs.ignored)}", style="yellow", markup=False, soft_wrap=True)
    screen.print(f"  {found.folder}: {counted(len(found.parts), 'part')}, Parquet", markup=False, soft_wrap=True)


def _labels(text: str | None) -> Any:
    """Parse the value of ``--labels``: return the names of the classes, or their number; None if it is not given."""
    if text is None:
        return None
    number = parse_integer(text, 0)
    return [name.strip() for name in text.split(",")] if number is None else number


def _kept(given: list[str]) -> dict[str, str]:
    """Return the input's columns that are copied to the output, as ``{name in the output: name in the input}``.

    Raises:
        OptionError: a name is empty, or two entries of `given` have the same name in the output.

    >>> _kept(["id", "gold=label"])
    {'id': 'id', 'gold': 'label'}
    """
    found: dict[str, str] = {}
    for text in given:
        new, equals, column = text.partition("=")
        if not new or (equals and not column):
            raise OptionError(f"--keep must be COLUMN, or NEW=COLUMN, got {text!r}")
        if new in found:
            raise OptionError(f"--keep {new} is given twice")
        found[new] = column or new
    return found
