"""``nopad plan``: show how much padding there is without packing, and how much of it each algorithm removes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from nopad.cli.answer import advice, answer, became, chosen, facts, left_out
from nopad.cli.capacities import planner_of, refuse_with_several, show_capacities
from nopad.cli.content import Chat, ChatOptions, Suffixes, TextFields, TextPair, content_of
from nopad.cli.inputs import passed_over
from nopad.cli.ladder import parse_ladder, refuse_beside, show_ladder
from nopad.cli.lengths import Given, read_given, read_pairs
from nopad.cli.monitor import Bars
from nopad.cli.options import (
    AlgorithmOptions,
    Carry,
    EmptyPolicy,
    Even,
    IdsField,
    MaskField,
    OnBadRecord,
    Overwrite,
    PadId,
    PlannedOverLong,
    SpecialTokens,
    TextUnit,
    TokenizerSpec,
    Validation,
    VocabSize,
    parse_depth,
    parse_options,
    parse_policies,
    parse_reader,
    parse_share,
)
from nopad.cli.plan_options import (
    Algorithms,
    AsJson,
    BatchSize,
    Capacities,
    Depths,
    DrawSeed,
    Everything,
    Inputs,
    Ladder,
    Output,
    SaveLengths,
)
from nopad.cli.pretrain import Pretrain, PretrainOptions, parse_pretrain
from nopad.cli.render import console, describe_bound, plan_table
from nopad.cli.standard_input import StdinFormat, from_stdin
from nopad.errors import LengthError, OptionError, RecordError
from nopad.histogram import Histogram
from nopad.options import check_sizes
from nopad.planning import Plan
from nopad.planning.baselines import BATCH_SIZE, Padded, padded
from nopad.planning.comparison import DEPTHS, compare, notes_of
from nopad.planning.costs import EVEN, STOPPED
from nopad.planning.registry import (
    ARRIVAL_ALGORITHMS,
    check_algorithm,
    complete_options,
    quick_algorithms,
)
from nopad.planning.several.given import EFFORT
from nopad.planning.summary import MAX_DRAWN

__all__ = ["plan"]


def plan(
    inputs: Inputs,
    capacity: Capacities = None,
    ladder: Ladder = None,
    algorithm: Algorithms = None,
    option: AlgorithmOptions = None,
    even: Even = False,
    depth: Depths = None,
    seed: DrawSeed = 0,
    batch_size: BatchSize = 32,
    everything: Everything = False,
    as_json: AsJson = False,
    output: Output = None,
    save_lengths: SaveLengths = None,
    tokenizer: TokenizerSpec = None,
    over_long: PlannedOverLong = None,
    empty: EmptyPolicy = "skip",
    on_bad_record: OnBadRecord = "error",
    special_tokens: SpecialTokens = True,
    text_unit: TextUnit = "file",
    text_field: TextFields = None,
    text_pair: TextPair = None,
    chat: Chat = None,
    chat_option: ChatOptions = None,
    suffix: Suffixes = None,
    stdin_format: StdinFormat = None,
    ids_field: IdsField = None,
    carry: Carry = None,
    mask_field: MaskField = None,
    pad_id: PadId = None,
    vocab_size: VocabSize = None,
    validation: Validation = None,
    pretrain: Pretrain = None,
    pretrain_option: PretrainOptions = None,
    force: Overwrite = False,
) -> None:
    """Show what packing gains: padding without and with it, distance to the proven minimum, and what a depth costs.

    Examples:
      nopad plan lengths.npy --capacity 512

      nopad plan chats.jsonl -c 4096 --tokenizer path/to/model

      nopad plan monday.npy tuesday.npy -c 512

      nopad plan chats.jsonl -c 4096 --tokenizer path/to/model --save-lengths lengths.npy

      nopad plan chats.jsonl -c 2048 -c 4096 -c 8192 --tokenizer path/to/model

      nopad plan corpus/ -c 2048 --all

      nopad plan histogram.json --algorithm lpfhp --depth 3 --depth none --json

      nopad plan corpus/ --capacity 2048 --over-long split --tokenizer tokenizer.json

      nopad plan web=web/ code=code/ -c 4096 --validation 1%

      nopad plan articles/ -c 128 --pretrain bert --over-long truncate

      nopad plan histogram.json -a lpfhp -d none -o lpfhp.plan.json

      nopad plan lengths.npy --ladder 2048:1,8192:4.3,32768:19 -o ladder.plan.json
    """
    options = parse_options(option, even)
    others = {"ids_field": ids_field, "pad_id": pad_id, "pretrain": pretrain}
    content = content_of(text_field, text_pair, chat, chat_option, others)
    policies = parse_policies(special_tokens, over_long or "error", empty, on_bad_record, vocab_size)
    read = partial(
        read_given,
        from_stdin(inputs, stdin_format),
        content=content,
        tokenizer=tokenizer,
        policies=policies,
        as_pairs=parse_pretrain(pretrain, pretrain_option, tokenizer, policies, seed),
        reader=parse_reader(
            text_unit, content.text_field, ids_field, carry, mask_field, pad_id, suffix, find_labels=pretrain is None
        ),
        validation=parse_share(validation),
        seed=seed,
        keep=_npy(save_lengths),
    )
    capacities = list(dict.fromkeys(capacity or ()))
    for size in capacities or [1]:
        check_sizes(size, None, seed)
    BATCH_SIZE.check("--batch-size", batch_size)
    wanted = Wanted(algorithm, depth, everything, options, output, batch_size, as_json)
    if ladder is not None:
        beside = {"--capacity": capacity, "--algorithm": algorithm, "--all": everything}
        _ladder(ladder, read, beside, wanted)
    elif len(capacities) > 1:
        one = {"--output": output, "--all": everything, "--over-long": over_long, "--pretrain": pretrain}
        refuse_with_several(one, {"--algorithm": algorithm, "--depth": depth})
        planner = planner_of((algorithm or ["auto"])[0], wanted.saved_depth, options, seed)
        show_capacities(read, inputs, capacities, planner, batch_size, as_json)
    else:
        apart = over_long is None and output is None and pretrain is None
        with _way_out() if over_long is None and output is not None else nullcontext():
            _one(partial(read, apart=apart), next(iter(capacities), None), wanted, seed)


def _one(read: Callable[..., Given], capacity: int | None, wanted: Wanted, seed: int) -> None:
    """Plan for one capacity, and print what packing gains.

    Args:
        read: a function that is called as ``read(capacity, monitor)`` and returns the input.
        capacity: the value of ``--capacity``; None: not given.
        wanted: what the user asked for.
        seed: the value of ``--seed``.
    """
    _check_output(wanted.output, len(wanted.algorithms), len(wanted.depth or [None]))
    given, rows = _compare(read, capacity, wanted, seed)
    without = padded(given.histogram, given.capacity, wanted.batch_size)
    if wanted.as_json:
        print(json.dumps(facts(given, without, rows), indent=1))
    else:
        _show(given, without, rows, wanted)


@contextmanager
def _way_out() -> Iterator[None]:
    """In a ``with`` block, add an explanation to errors about sequences above the capacity.

    Such a sequence is an error if the plan is to be saved: a saved plan leaves no sequence out unless the user asks for
    that.

    Raises:
        RecordError, LengthError: the same error with a longer message; other errors are raised unchanged.
    """
    try:
        yield
    except (RecordError, LengthError) as error:
        if "capacity" not in str(error):
            raise
        raise type(error)(f"{error}; a plan that is saved leaves nothing out by itself") from error


@dataclass(frozen=True)
class Wanted:
    """What the user asked `nopad plan` to show.

    Attributes:
        algorithm, depth: the values of ``--algorithm`` and ``--depth``; None: not given.
        everything: whether ``--all`` is given.
        options: options of the algorithms, by name.
        output: the file to save a plan in; None: no plan is saved.
        batch_size: sequences of a batch without packing.
        as_json: whether ``--json`` is given.
    """

    algorithm: list[str] | None
    depth: list[str] | None
    everything: bool
    options: Mapping[str, Any]
    output: Path | None
    batch_size: int
    as_json: bool

    @property
    def algorithms(self) -> list[str]:
        """Names of the algorithms to plan with: those that the user names, or a default.

        The default is "auto" alone if three conditions hold: ``--all`` is not given; "auto" is one of the
        `quick_algorithms` for the options; and a plan is to be saved, or no depth is given. Otherwise, the default is
        all these `quick_algorithms`.
        """
        quick = list(quick_algorithms(self.options))
        return self.algorithm or (["auto"] if not self.everything and self._one_row and "auto" in quick else quick)

    @property
    def depths(self) -> list[int | None]:
        """The depths to plan for; a depth of None is unlimited."""
        return [parse_depth(text) for text in self.depth] if self.depth else list(DEPTHS)

    @property
    def _one_row(self) -> bool:
        """Whether a single algorithm is enough if the user names none: a plan is to be saved, or no depth is given."""
        return self.output is not None or not self.depth

    @property
    def saved_depth(self) -> int | None:
        """The depth of the plan that is saved: the first that the user gave. None: unlimited, or not given."""
        return self.depths[0] if self.depth else None

    @property
    def short(self) -> bool:
        """Whether to show the short answer: none of ``--all``, ``--algorithm`` and ``--depth`` is given.

        The short answer has advice on ``--depth``, and fewer columns than the table of several algorithms.
        """
        return not self.everything and not self.algorithm and not self.depth


def _compare(
    read: Callable[..., Given], capacity: int | None, wanted: Wanted, seed: int
) -> tuple[Given, list[dict[str, Any]]]:
    """Read the input, plan with every wanted algorithm at every wanted depth; return the input and a row for each plan.

    A row is a dict about the plan, as `nopad.planning.comparison.compare` returns it. ``read(capacity, monitor)`` reads
    the input. With ``--output``, the plan of depth `Wanted.saved_depth` is saved.

    Some algorithms take sequences in the order of arrival. If the input is a histogram, this order is drawn at random.
    If a histogram has too many sequences for that, these algorithms are left out, unless the user named algorithms.
    """
    options, algorithms = wanted.options, wanted.algorithms
    for name in algorithms:
        check_algorithm(name)
        complete_options(name, options)
    with Bars() as monitor:
        given = read(capacity, monitor)
        histogram = given.histogram
        if wanted.algorithm is None and given.lengths is None and histogram.sequences > MAX_DRAWN:
            algorithms = [name for name in algorithms if name not in ARRIVAL_ALGORITHMS]  # too many to draw an order

        def begun(name: str) -> None:
            monitor.stage(f"planning {name}", len(wanted.depths), "depths")

        def done(made: Plan) -> None:
            monitor.advance(1)
            if wanted.output is not None and made.depth == wanted.saved_depth:
                _as_saved(given, made).save(wanted.output)

        sizes = histogram if given.lengths is None else given.lengths
        told: dict[str, Any] = {"seed": seed, "options": options, "on_start": begun, "on_plan": done}
        rows = compare(sizes, histogram, given.capacity, algorithms, wanted.depths, **told)
    return given, rows


def _as_saved(given: Given, made: Plan) -> Plan:
    """Return the plan in the form in which it is saved.

    If records were changed or skipped, a note on them is added. If there are facts about how the corpus was read, they
    are added too.
    """
    notes = (*made.notes, f"records: {'; '.join(became(given))}") if became(given) else made.notes
    how = {name: value for name, value in given.corpus.items() if value}
    return replace(made, notes=notes, facts={**made.facts, "corpus": given.corpus} if how else made.facts)


def _ladder(text: str, read: partial[Given], beside: Mapping[str, Any], wanted: Wanted) -> None:
    """Read the input, and make and show one plan for the capacities in `text`; with ``--output``, save it too.

    Args:
        text: the value of ``--ladder``: the capacities, with or without prices.
        read: `read_given` with all its arguments except capacity and monitor.
        beside: the values of the options that ``--ladder`` excludes, by name.
        wanted: what the user asked for.
    """
    ladder, options, as_json = parse_ladder(text), wanted.options, wanted.as_json
    refuse_beside(beside, wanted.depth, options)
    EFFORT.check("effort", options.get("effort", EFFORT.default))
    _check_output(wanted.output, 1, 1)
    given = None
    if len(ladder[0][0]) == 2:
        sizes: Histogram | NDArray[Any] = read_pairs(*read.args, **read.keywords)
    else:
        with Bars() as monitor:
            given = read(max(ladder[0])[0], monitor)
        sizes = given.histogram if given.lengths is None else given.lengths
    show_ladder(sizes, ladder, wanted.saved_depth, options, as_json, wanted.output)
    if given is not None and not as_json:
        for said in filter(None, ("; ".join(became(given)), passed_over(given.passed_over))):
            console().print(said, style="yellow", markup=False, soft_wrap=True)


def _show(given: Given, without: Padded, rows: list[dict[str, Any]], wanted: Wanted) -> None:
    """Print what packing gains, a table of the plans, and their notes.

    Below them, the short answer (`Wanted.short`) says what a limit on depth costs; any other answer states the lower
    bound. If a plan was saved, the last line names its file.
    """
    out = console()
    whole = not out.is_terminal  # lines are wrapped for a terminal only
    for line in answer(given, without, rows):
        out.print(line, markup=False, soft_wrap=whole)
    for said in filter(None, (chosen(given), left_out(given, _ways(given)), passed_over(given.passed_over))):
        out.print(said, style="yellow", markup=False, soft_wrap=whole)
    short = ("strategies", "reached", "padding tokens") if wanted.short else ()
    out.print(plan_table(rows, out.width, short))
    for note in notes_of(_without_evenness(rows) if wanted.short else rows):
        out.print(note, style="dim", markup=False, soft_wrap=whole)
    if wanted.short:
        for line in (*advice(rows), "Five algorithms at these depths: --all"):
            out.print(line, markup=False, soft_wrap=whole)
    else:
        out.print(describe_bound(given.histogram, given.capacity, rows))
    if wanted.output is not None:
        out.print(f"saved {wanted.output}", markup=False, soft_wrap=True)


def _without_evenness(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the rows; those with a depth limit lose their notes on evenness, since their plans can hardly be even.

    >>> rows = [{"depth": depth, "notes": ["even packs: ...", "another note"]} for depth in (2, None)]
    >>> [row["notes"] for row in _without_evenness(rows)]
    [['another note'], ['even packs: ...', 'another note']]
    """
    return [
        row
        if row["depth"] is None
        else {**row, "notes": [n for n in row["notes"] if not n.startswith((EVEN, STOPPED))]}
        for row in rows
    ]


def _ways(given: Given) -> str:
    """Return as text what can be done with sequences above the capacity.

    The caller replaces ``{it}`` in this text by "it" or "them".
    """
    if given.policies:
        return f"nopad pack needs --over-long {given.policies} for {{it}}"
    return "cut or remove {it} in the file"


def _npy(path: Path | None) -> Path | None:
    """Return `path`, the value of ``--save-lengths``, after checking it.

    Raises:
        OptionError: the name does not end with ``.npy``, or its folder does not exist.
    """
    if path is not None and path.suffix != ".npy":
        raise OptionError(f"--save-lengths {path}: lengths are read from files that end with .npy; name it so")
    if path is not None and not path.parent.is_dir():
        raise OptionError(f"{path}: there is no folder {path.parent}; make it, or choose another --save-lengths")
    return path


def _check_output(output: Path | None, algorithms: int, depths: int) -> None:
    """Refuse a file for the plan (``--output``) unless exactly one plan is made and the file's folder exists.

    `algorithms` and `depths` are the numbers of algorithms and depths that the user asked for. If `output` is None,
    nothing is checked.

    Raises:
        OptionError: several plans would be made, or there is no such folder.
    """
    if output is None:
        return
    if (algorithms, depths) != (1, 1):
        raise OptionError(
            f"--output saves one plan; give one --algorithm and one --depth, not {algorithms} and {depths}"
        )
    if not output.parent.is_dir():
        raise OptionError(f"{output}: there is no folder {output.parent}; make it, or choose another --output")
