"""Options of `nopad audit`; other commands define options of the same names for themselves."""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = [
    "Accumulation",
    "AsJson",
    "Attention",
    "Backend",
    "Capacity",
    "Collator",
    "Derive",
    "Gradients",
    "Layers",
    "ModelName",
    "Per",
    "RanksOption",
    "StepFile",
    "TokenSeed",
]

ModelName = Annotated[
    str | None,
    typer.Argument(metavar="MODEL", help="A folder with a transformers model, or a hub name; not with --step."),
]
StepFile = Annotated[
    str | None,
    typer.Option(
        "--step",
        metavar="FILE.py",
        help="Audit a training step instead: loss, denominators, gradients. The file defines model(), examples() "
        "and, if need be, collate(examples), loss(model, batch, step), alone(model, inputs); or trainer().",
    ),
]
RanksOption = Annotated[int, typer.Option("--ranks", metavar="N", help="Ranks of the step, simulated.")]
Accumulation = Annotated[
    int | None,
    typer.Option("--accumulation", metavar="N", help="Micro-batches of each rank. Default: 2, or the trainer's."),
]
Per = Annotated[
    str, typer.Option("--per", metavar="WORD", help="What the step's loss is to be a mean over: token, or sequence.")
]
Backend = Annotated[
    str, typer.Option("--backend", metavar="NAME", help="How attention keeps sequences apart; auto by device.")
]
Collator = Annotated[
    str,
    typer.Option(
        "--collator",
        metavar="NAME",
        help="nopad; else audit the model as it is, fed by this: flattening (transformers' "
        "DataCollatorWithFlattening), trl (TRL's padding-free one, without a cache as in its trainer), or your own "
        "as module:name.",
    ),
]
Attention = Annotated[
    str | None,
    typer.Option(
        "--attention", metavar="NAME", help="Load the model with this attention implementation of transformers."
    ),
]
Capacity = Annotated[
    int | None,
    typer.Option(
        "--capacity",
        "-c",
        metavar="N",
        help="Most tokens of the packs that are tried. Default: 64, or more for a model with local attention.",
    ),
]
Layers = Annotated[
    int | None, typer.Option("--layers", metavar="N", help="Only the first N layers, for a large model.")
]
Gradients = Annotated[bool, typer.Option(help="Compare gradients too.")]
TokenSeed = Annotated[int, typer.Option("--seed", metavar="S", help="Random seed of the tokens that are tried.")]
Derive = Annotated[
    bool,
    typer.Option(
        "--derive",
        help="Derive how the model's sequences can be kept apart, prove it on a small copy, and print what was "
        "found as a line of the family table. Only the configuration is read.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the verdict as JSON.")]
