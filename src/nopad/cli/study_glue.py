"""``nopad study glue``: Table 3 of the supplement, recomputed from GLUE's datasets in a folder or on the hub."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from nopad.cli.monitor import Bars
from nopad.cli.options import TokenizerSpec
from nopad.cli.render import console
from nopad.cli.render_study import redone_notes, redone_table
from nopad.cli.study_output import AsJson, print_notes

__all__ = ["glue"]

_WAY = (
    "hf download nyu-mll/glue --repo-type dataset --local-dir FOLDER  gets all of them; then  nopad study glue FOLDER"
)
_OF_BERT = "the published figures are of bert-base-uncased's vocabulary"


def glue(
    folder: Annotated[
        Path | None,
        typer.Argument(
            metavar="[FOLDER]",
            show_default=False,
            help="Has a folder or file per set: cola/train.parquet, SST-2/train.tsv, rte.jsonl. Default: the hub.",
        ),
    ] = None,
    as_json: AsJson = False,
    tokenizer: TokenizerSpec = None,
) -> None:
    """Recompute Table 3, GLUE at capacity 128: published, ours, the difference; then nopad's default plan.

    A set that is missing from the folder or the hub is shown with the published figures only, and marked as missing.

    Examples:
      nopad study glue

      nopad study glue path/to/glue --json
    """
    from nopad.corpus import load_tokenizer
    from nopad.study.glue import glue_lengths, glue_sets, redo_glue

    made = load_tokenizer(tokenizer)
    done: list[dict[str, Any]] = []
    with Bars() as monitor:
        for found in glue_sets(folder):
            histogram, notes = None, []
            if found.records is not None:
                monitor.stage(f"reading {found.name}", None, "records")
                histogram, cut = glue_lengths(found, made, monitor.advance)
                notes = [f"{cut:,} of {histogram.sequences:,} sequences cut to 128 tokens"] if cut else []
                notes += [f"tokenised by {made.name}; {_OF_BERT}"] if tokenizer is not None else []
            table, rows = redo_glue(found.name, histogram, notes)
            one = {"set": found.name, "redone": histogram is not None, "from": found.origin, "missing": found.missing}
            done.append({**one, "table": table, "rows": rows})
    if as_json:
        shown = [{**one, "table": one["table"].name, "rows": [asdict(row) for row in one["rows"]]} for one in done]
        print(json.dumps({"sets": shown}, indent=1))
        return
    _show(done)


def _show(done: list[dict[str, Any]]) -> None:
    screen = console()
    for one in done:
        if not one["rows"]:
            continue
        screen.print(redone_table(one["table"], one["rows"], screen.width))
        if not one["redone"]:
            screen.print("  published only: this set is not here", style="yellow")
        print_notes(redone_notes(one["rows"]))
        screen.print()
    lacking = [one for one in done if not one["redone"]]
    if not lacking:
        return
    names = ", ".join(one["set"] for one in lacking)
    screen.print(f"{len(lacking)} of {len(done)} sets are not here, and not redone: {names}", style="yellow")
    screen.print(f"  {lacking[0]['set']}: {lacking[0]['missing']}", markup=False, soft_wrap=True)
    screen.print(f"  {_WAY}", markup=False, soft_wrap=True)
