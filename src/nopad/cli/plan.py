"""``nopad plan``: show how much padding there is without packing, and how much of it each algorithm removes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from numpy.typing import NDArray

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
    OverLong,
    PadId,
    SpecialTokens,
    TextField,
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
from nopad.cli.pretrain import Pretrain, PretrainOptions, parse_pretrain
from nopad.cli.render import console, describe_bound, describe_histogram, plan_table
from nopad.errors import OptionError
from nopad.histogram import Histogram
from nopad.options import check_sizes
from nopad.planning import ALGORITHMS, Plan
from nopad.planning.comparison import DEPTHS, compare, notes_of
from nopad.planning.registry import (
    ARRIVAL_ALGORITHMS,
    QUICK_ALGORITHMS,
    check_algorithm,
    complete_options,
    quick_algorithms,
)
from nopad.planning.several.given import EFFORT
from nopad.planning.summary import MAX_DRAWN
from nopad.store import Monitor

__all__ = ["plan", "table_rows"]


def plan(
    inputs: Annotated[
        list[str],
        typer.Argument(
            metavar="INPUT...",
            help="A histogram (.json), lengths (.npy), or all that nopad pack takes, names included.",
        ),
    ],
    capacity: Annotated[
        int | None,
        typer.Option(
            "--capacity", "-c", metavar="N", help="Most tokens a pack may hold. Default: what the histogram file says."
        ),
    ] = None,
    ladder: Annotated[
        str | None,
        typer.Option(
            "--ladder",
            metavar="N:PRICE,...",
            help="Several capacities with the price of a pack each, such as 2048:1,8192:4.3: the cheapest plan of all. "
            "Two kinds of size, from an .npy file [n, 2]: 2048x16:1,8192x32:4.3.",
        ),
    ] = None,
    algorithm: Annotated[
        list[str] | None,
        typer.Option(
            "--algorithm",
            "-a",
            metavar="NAME",
            help=f"One of {', '.join(ALGORITHMS)}. Repeatable. Default: {', '.join(QUICK_ALGORITHMS)}.",
        ),
    ] = None,
    option: AlgorithmOptions = None,
    even: Even = False,
    depth: Annotated[
        list[str] | None,
        typer.Option(
            "--depth",
            "-d",
            metavar="D",
            help="Most sequences a pack may hold, or none. Repeatable. Default: 1 2 3 4 8 16 none.",
        ),
    ] = None,
    seed: Annotated[
        int,
        typer.Option(
            "--seed",
            metavar="S",
            help="Random seed of the order drawn for greedy from a histogram, and of --validation.",
        ),
    ] = 0,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON array, a row per algorithm and depth.")
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Save the plan; needs one --algorithm and one --depth."),
    ] = None,
    tokenizer: TokenizerSpec = None,
    over_long: OverLong = "error",
    empty: EmptyPolicy = "skip",
    on_bad_record: OnBadRecord = "error",
    special_tokens: SpecialTokens = True,
    text_unit: TextUnit = "file",
    text_field: TextField = None,
    ids_field: IdsField = None,
    carry: Carry = None,
    mask_field: MaskField = None,
    pad_id: PadId = None,
    vocab_size: VocabSize = None,
    validation: Validation = None,
    pretrain: Pretrain = None,
    pretrain_option: PretrainOptions = None,
) -> None:
    """Plan packs and print a table of algorithms and depths, each against the proven lower bound.

    Examples:
      nopad plan lengths.npy --capacity 512

      nopad plan histogram.json --algorithm lpfhp --depth 3 --depth none --json

      nopad plan corpus/ --capacity 2048 --over-long split --tokenizer tokenizer.json

      nopad plan web=web/ code=code/ -c 4096 --validation 1%

      nopad plan articles/ -c 128 --pretrain bert --over-long truncate

      nopad plan histogram.json -a lpfhp -d none -o lpfhp.plan.json

      nopad plan lengths.npy --ladder 2048:1,8192:4.3,32768:19 -o ladder.plan.json
    """
    options = parse_options(option, even)
    policies = parse_policies(special_tokens, over_long, empty, on_bad_record, vocab_size)
    read = partial(
        read_given,
        inputs,
        tokenizer=tokenizer,
        policies=policies,
        as_pairs=parse_pretrain(pretrain, pretrain_option, tokenizer, policies, seed),
        reader=parse_reader(text_unit, text_field, ids_field, carry, mask_field, pad_id),
        validation=parse_share(validation),
        seed=seed,
    )
    check_sizes(1 if capacity is None else capacity, None, seed)
    if ladder is not None:
        _ladder(ladder, read, {"--capacity": capacity, "--algorithm": algorithm}, options, depth, as_json, output)
    else:
        _compare(read, capacity, algorithm, options, depth, seed, as_json, output)


def _compare(
    read: Callable[..., Given],
    capacity: int | None,
    algorithm: list[str] | None,
    options: Mapping[str, Any],
    depth: list[str] | None,
    seed: int,
    as_json: bool,
    output: Path | None,
) -> None:
    """Plan with every algorithm at every depth, and print a row for each; None: those of the default."""
    algorithms = algorithm or quick_algorithms(options)
    depths = [parse_depth(text) for text in depth] if depth else list(DEPTHS)
    _check_output(output, len(algorithms), len(depths))
    for name in algorithms:
        check_algorithm(name)
        complete_options(name, options)
    with Bars() as monitor:
        given = read(capacity, monitor)
        histogram = given.histogram
        if algorithm is None and given.lengths is None and histogram.sequences > MAX_DRAWN:
            algorithms = [name for name in algorithms if name not in ARRIVAL_ALGORITHMS]  # too many to draw an order of
        rows = table_rows(
            histogram if given.lengths is None else given.lengths,
            histogram,
            given.capacity,
            algorithms,
            depths,
            seed=seed,
            options=options,
            output=output,
            monitor=monitor,
        )
    if as_json:
        print(json.dumps(rows, indent=1))
    else:
        _show(rows, histogram, given.capacity, output)


def _ladder(
    text: str,
    read: partial[Given],
    beside: Mapping[str, Any],
    options: Mapping[str, Any],
    depth: list[str] | None,
    as_json: bool,
    output: Path | None,
) -> None:
    """Plan for several capacities."""
    ladder = parse_ladder(text)
    refuse_beside(beside, depth, options)
    EFFORT.check("effort", options.get("effort", EFFORT.default))
    own = parse_depth(depth[0]) if depth else None
    _check_output(output, 1, 1)
    if len(ladder[0][0]) == 2:
        sizes: Histogram | NDArray[Any] = read_pairs(*read.args, **read.keywords)
    else:
        with Bars() as monitor:
            given = read(max(ladder[0])[0], monitor)
        sizes = given.histogram if given.lengths is None else given.lengths
    show_ladder(sizes, ladder, own, options, as_json, output)


def _show(rows: list[dict[str, Any]], histogram: Histogram, capacity: int, output: Path | None) -> None:
    """Print the table, the notes of its plans, and the lower bound."""
    out = console()
    out.print(describe_histogram(histogram, capacity))
    out.print(plan_table(rows, out.width))
    for note in notes_of(rows):
        out.print(note, style="dim", markup=False)
    out.print(describe_bound(histogram, capacity, rows))
    if output is not None:
        out.print(f"saved {output}", markup=False, soft_wrap=True)


def _check_output(output: Path | None, algorithms: int, depths: int) -> None:
    """Refuse --output unless there is exactly one plan and a folder to save it in."""
    if output is None:
        return
    if (algorithms, depths) != (1, 1):
        raise OptionError(
            f"--output saves one plan; give one --algorithm and one --depth, not {algorithms} and {depths}"
        )
    if not output.parent.is_dir():
        raise OptionError(f"{output}: there is no folder {output.parent}; make it, or choose another --output")


def table_rows(
    given: Histogram | NDArray[Any],
    histogram: Histogram,
    capacity: int,
    algorithms: Sequence[str],
    depths: Sequence[int | None],
    *,
    monitor: Monitor,
    seed: int = 0,
    options: Mapping[str, Any] | None = None,
    output: Path | None = None,
) -> list[dict[str, Any]]:
    """Call `nopad.planning.comparison.compare` with progress bars, and return its rows.

    The other arguments are those of `compare`. `output`: the file to save the plan in; only with one algorithm and one
    depth.
    """

    def done(made: Plan) -> None:
        monitor.advance(1)
        if output is not None:
            made.save(output)

    def begun(name: str) -> None:
        monitor.stage(f"planning {name}", len(depths), "depths")

    return compare(
        given, histogram, capacity, algorithms, depths, seed=seed, options=options, on_start=begun, on_plan=done
    )
