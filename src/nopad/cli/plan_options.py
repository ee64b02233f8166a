"""Options of `nopad plan`; other commands define options of the same names for themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nopad.planning import ALGORITHMS
from nopad.planning.registry import QUICK_ALGORITHMS

__all__ = [
    "Algorithms",
    "AsJson",
    "BatchSize",
    "Capacities",
    "Depths",
    "DrawSeed",
    "Everything",
    "Inputs",
    "Ladder",
    "Output",
    "SaveLengths",
]

Inputs = Annotated[
    list[str],
    typer.Argument(
        metavar="INPUT...",
        help="Histograms (.json), lengths (.npy), or all that nopad pack takes, names included. Several are one input.",
    ),
]
Capacities = Annotated[
    list[int] | None,
    typer.Option(
        "--capacity",
        "-c",
        metavar="N",
        help="Most tokens a pack may hold. Repeatable: a table with a line for each. Default: what the histogram "
        "file says, or the smallest power of two that holds the longest sequence.",
    ),
]
Ladder = Annotated[
    str | None,
    typer.Option(
        "--ladder",
        metavar="N:PRICE,...",
        help="Several capacities with the price of a pack each, such as 2048:1,8192:4.3: the cheapest plan of all. "
        "Two kinds of size, from an .npy file [n, 2]: 2048x16:1,8192x32:4.3.",
    ),
]
Algorithms = Annotated[
    list[str] | None,
    typer.Option(
        "--algorithm",
        "-a",
        metavar="NAME",
        help=f"One of {', '.join(ALGORITHMS)}. Repeatable. Default: auto; with --all, or --depth without --output, "
        f"{', '.join(QUICK_ALGORITHMS)}.",
    ),
]
Depths = Annotated[
    list[str] | None,
    typer.Option(
        "--depth",
        "-d",
        metavar="D",
        help="Most sequences a pack may hold, or none. Repeatable. Default: 1 2 3 4 8 16 none.",
    ),
]
DrawSeed = Annotated[
    int,
    typer.Option(
        "--seed",
        metavar="S",
        help="Random seed of the order drawn for greedy from a histogram, and of --validation.",
    ),
]
BatchSize = Annotated[
    int, typer.Option("--batch-size", metavar="B", help="Sequences of a batch without packing, to compare with.")
]
Everything = Annotated[
    bool, typer.Option("--all", help="The table of five algorithms at seven depths.", show_default=False)
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the same facts as one JSON object.")]
SaveLengths = Annotated[
    Path | None,
    typer.Option(
        "--save-lengths",
        metavar="FILE",
        help="Save the lengths of the sequences as FILE.npy, to plan for them again without tokenising.",
    ),
]
Output = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE",
        help="Save the plan: without --algorithm and --depth, that of auto with unlimited depth.",
    ),
]
