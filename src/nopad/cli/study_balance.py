"""``nopad study balance`` and ``nopad study scaling``: how evenly ranks are loaded, and how that affects speed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from nopad.balance import cost_model
from nopad.cli.monitor import Bars
from nopad.cli.options import Overwrite
from nopad.cli.render import console
from nopad.cli.render_balance import (
    balance_table,
    effect_lines,
    latency_table,
    long_table,
    scaling_table,
    waste_table,
)
from nopad.cli.study_output import AsJson, Plot, print_saved, read_filled
from nopad.errors import OptionError
from nopad.options import parse_integer
from nopad.report.drawing import check_chart, save_chart
from nopad.study import (
    WORKLOADS,
    LatencyRow,
    LongRow,
    balance_rows,
    latency_rows,
    long_context_rows,
    order_effect,
    scaling,
    too_long,
)
from nopad.study.balance import GPUS, ORDER_STEPS, studied
from nopad.study.balance_charts import latency_chart, long_context_chart, ranges_chart, scaling_chart
from nopad.study.latency import BATCHES
from nopad.study.scaling import PACKING, ScalingRow, crossing, of_one_device
from nopad.wording import counted, spanned

__all__ = ["balance", "scaling_verb"]

_TABLE_5 = 1024  # GPUs; shown in full if it is among those asked for
_NO_LONG = "  No sequence alone takes more than 110 % of a rank's mean."
_FEWER_SHORT = (
    "  The paper's Wikipedia has slightly more short sequences (37.3 % up to 128 tokens, for 36.9 %): without quotas, "
    "ranks have\n  some 20 tokens more."
)


def balance(
    given: Annotated[
        list[str] | None,
        typer.Argument(metavar="[HISTOGRAM]", help="A histogram (.json). Without one: drawn corpora of long context."),
    ] = None,
    gpus: Annotated[
        list[str] | None,
        typer.Option(
            "--gpus", metavar="N", help="Numbers of GPUs, such as 8,64,1024. Default: 8 to 2048; long context: 64."
        ),
    ] = None,
    node: Annotated[int, typer.Option("--node", metavar="N", help="GPUs of a node.")] = 8,
    batch: Annotated[int, typer.Option("--batch", metavar="N", help="Sequences per GPU and step.")] = 16,
    cost: Annotated[
        str | None,
        typer.Option(
            "--cost",
            metavar="MODEL",
            help="Cost of a sequence: tokens, or attention:HIDDEN_SIZE. Default: tokens; long context: attention:4096.",
        ),
    ] = None,
    steps: Annotated[
        int | None, typer.Option("--steps", metavar="N", help="Steps to simulate. Default: 500; long context: 128.")
    ] = None,
    as_json: AsJson = False,
    plot: Plot = None,
    force: Overwrite = False,
) -> None:
    """Recompute MLPerf Table 5 and Figure 6: how evenly each balancing method loads the ranks, ours included.

    With a histogram: tokens per GPU, waste (how much longer the slowest rank takes than the mean rank), ABR (share of
    time spent waiting). Without one: random corpora of long context; ranks wait once per step, or per micro-step.

    Examples:
      nopad study balance wikipedia.json

      nopad study balance wikipedia.json --gpus 8,64,1024 --cost attention:1024 --plot figure6.svg

      nopad study balance --json
    """
    if plot is not None:
        check_chart(plot)
    files = [text for text in given or () if not text.isdecimal()]
    counts = _counts([*(gpus or ()), *(text for text in given or () if text.isdecimal())])
    if len(files) > 1:
        raise OptionError(f"one histogram at a time, got {', '.join(files)}")
    if counts and gpus is None:
        raise OptionError(f"{counts[0]} is no histogram; numbers of GPUs are given as --gpus {counts[0]}")
    for name, number in (("node", node), ("batch", batch), ("steps", 1 if steps is None else steps)):
        if number < 1:
            raise OptionError(f"{name} must be at least 1, got {number}")
    if files:
        _of_histogram(Path(files[0]), counts or list(GPUS), node, batch, cost or "tokens", steps, as_json, plot)
    else:
        _long_context(counts or [64], node, cost or "attention:4096", steps or 128, as_json, plot)


def _of_histogram(
    file: Path,
    gpus: list[int],
    node: int,
    batch: int,
    cost: str,
    steps: int | None,
    as_json: bool,
    plot: Path | None,
) -> None:
    (histogram, _), model = read_filled(file), cost_model(cost)
    rows = []
    with Bars() as monitor:
        monitor.stage("simulating", len(gpus) * len(studied()), "rows")
        for row in balance_rows(histogram, gpus, node=node, batch=batch, cost=model, steps=steps):
            rows.append(row)
            monitor.advance(1)
    if plot is not None:
        save_chart(ranges_chart(rows), plot)
    if as_json:
        print(json.dumps([asdict(row) for row in rows], indent=1))
        return
    screen = console()
    shown = _TABLE_5 if _TABLE_5 in gpus else max(gpus)
    screen.print(balance_table([row for row in rows if row.gpus == shown], histogram, screen.width))
    if any(row.method == "none" for row in rows) and shown == _TABLE_5:
        screen.print(_FEWER_SHORT, style="dim")
    if len(gpus) > 1:
        screen.print(waste_table(rows))
    most = min(ORDER_STEPS, histogram.sequences // 128)
    if most > 1:
        screen.print("\n".join(effect_lines(order_effect(histogram, model, most), most)), style="dim")
    print_saved(plot)


def _long_context(gpus: list[int], node: int, cost: str, steps: int, as_json: bool, plot: Path | None) -> None:
    if len(gpus) > 1:
        raise OptionError(f"the study of long context takes one number of GPUs, got {', '.join(map(str, gpus))}")
    model, found = cost_model(cost), []
    rows: list[LongRow] = []
    with Bars() as monitor:
        monitor.stage("simulating", len(WORKLOADS), "workloads")
        for workload in WORKLOADS:
            rows += long_context_rows(workload, cost=model, ranks=gpus[0], node=node, steps=steps)
            found.append(too_long(workload, model, ranks=gpus[0], steps=steps))
            monitor.advance(1)
    if plot is not None:
        save_chart(long_context_chart(rows), plot)
    if as_json:
        print(json.dumps([asdict(row) for row in rows], indent=1))
        return
    screen = console()
    for workload, (high, lengths) in zip(WORKLOADS, found, strict=True):
        screen.print(long_table([row for row in rows if row.workload == workload.name], screen.width))
        if lengths.size:
            long = f"{counted(lengths.size, 'sequence')} of {spanned(lengths.min(), lengths.max(), 'token')}"
            screen.print(
                f"  {high} of {steps} random steps have a floor above 10 %, because of {long}:\n"
                "  these would need context parallelism.\n",
                style="dim",
            )
        else:
            screen.print(f"{_NO_LONG}\n", style="dim")
    print_saved(plot)


def scaling_verb(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A histogram (.json), such as Wikipedia's.")],
    as_json: AsJson = False,
    plot: Plot = None,
    force: Overwrite = False,
    plot_latency: Annotated[
        Path | None, typer.Option("--plot-latency", metavar="FILE", help="Save a picture of the steps' latency too.")
    ] = None,
) -> None:
    """Recompute the supplement's estimate of un-padding on many devices; simulate MLPerf Figures 7 and 11.

    The printed scale of the Gumbel distribution, 0.108, does not satisfy the supplement's own equations; 0.318 does.
    Both estimates are shown, beside a Gumbel distribution of times, a simulation from the histogram without and with
    balance, and the packing factor.

    Examples:
      nopad study scaling wikipedia.json

      nopad study scaling wikipedia.json --plot scaling.svg --plot-latency figure7.svg
    """
    for path in (plot, plot_latency):
        if path is not None:
            check_chart(path)
    histogram, _ = read_filled(file)
    with Bars() as monitor:
        monitor.stage("simulating", 1 + len(BATCHES), "parts")
        rows = scaling(histogram)
        monitor.advance(1)
        steps: list[LatencyRow] = []
        for batch in BATCHES:
            steps += latency_rows(histogram, batches=[batch])
            monitor.advance(1)
    if plot is not None:
        save_chart(scaling_chart(rows), plot)
    if plot_latency is not None:
        save_chart(latency_chart(steps), plot_latency)
    if as_json:
        document = {"scaling": [asdict(row) for row in rows], "latency": [asdict(row) for row in steps]}
        print(json.dumps(document, indent=1))
        return
    screen = console()
    screen.print(scaling_table(rows))
    screen.print("\n".join(_crossings(rows)), style="dim")
    screen.print(latency_table(steps))
    for path in (plot, plot_latency):
        print_saved(path)


def _crossings(rows: Sequence[ScalingRow]) -> list[str]:
    """Return lines of text on the speed-up of un-padding on one device, and on when packing is faster than un-padding.

    The first line has the location and scale of the speed-up's distribution on one device. Then, for each of three
    estimates of un-padding, a line gives the number of devices above which packing is faster. An estimate by which
    packing is never faster has no line. The last line is empty.
    """
    alpha, beta = of_one_device()
    lines = [f"  One device by equations 19 and 20: location {alpha:.3f}, scale {beta:.3f} (printed: 1.94, 0.108)."]
    for name, attribute in (("as printed", "printed"), ("equations solved", "corrected"), ("simulated", "simulated")):
        at = crossing(rows, attribute, PACKING)
        if at is not None:
            lines.append(f"  Packing at the measured {PACKING} overtakes un-padding from {at:.2f} devices ({name}).")
    return [*lines, ""]


def _counts(texts: Sequence[str]) -> list[int]:
    """Return numbers of GPUs as integers, each once.

    Each of `texts` has one number, or several with commas between them.

    Raises:
        OptionError: a part is not a number from 1 to 1,048,576.
    """
    counts: dict[int, None] = {}
    for part in (part.strip() for text in texts for part in text.split(",")):
        count = parse_integer(part, 1, 1 << 20) if part.isascii() else None
        if count is None:
            raise OptionError(f"--gpus takes numbers from 1 to 1048576, such as 8,64,1024, got {part!r}")
        counts[count] = None
    return list(counts)
