"""``nopad study pretraining``: make BERT's pairs of any text at several maximum lengths, and pack them.

The packing factors (pairs per pack) are shown beside the paper's.
"""

from __future__ import annotations

import json
from typing import Annotated

import typer

from nopad.cli.inputs import open_inputs
from nopad.cli.monitor import Bars
from nopad.cli.options import Overwrite, TextField, TextUnit, TokenizerSpec
from nopad.cli.render import console
from nopad.cli.render_study import pairs_table
from nopad.cli.study_output import AsJson, Plot, print_notes, print_saved
from nopad.corpus import PairOptions, ReaderOptions, load_tokenizer, open_source
from nopad.report.drawing import check_chart, save_chart
from nopad.study.charts import distributions_chart
from nopad.study.pretraining import LENGTHS, machine_documents, pairs_at

__all__ = ["pretraining"]

_MACHINE = "Python's standard library, the docstrings and comments of each module as a document"


def pretraining(
    inputs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[INPUT...]", show_default=False, help="Texts, as for nopad pack. Default: the standard library's."
        ),
    ] = None,
    length: Annotated[
        list[int] | None,
        typer.Option("--length", "-l", metavar="N", help="Most tokens of a pair. Repeatable. Default: 128 384 512."),
    ] = None,
    copies: Annotated[int, typer.Option("--copies", metavar="N", help="How often pairs are made of a document.")] = 1,
    seed: Annotated[int, typer.Option("--seed", metavar="S", help="Random seed of the pairs.")] = 0,
    as_json: AsJson = False,
    plot: Plot = None,
    tokenizer: TokenizerSpec = None,
    text_unit: TextUnit = "file",
    text_field: TextField = None,
    force: Overwrite = False,
) -> None:
    """Make BERT's pre-training pairs at 128, 384 and 512 tokens: lengths, and the speed-up that packing gives.

    Shown beside them: the paper's theoretical speed-ups and packing factors for Wikipedia at these lengths.

    Examples:
      nopad study pretraining

      nopad study pretraining articles.txt --text-unit paragraph --json
    """
    if plot is not None:
        check_chart(plot)
    options = PairOptions(copies=copies, seed=seed)
    made = load_tokenizer(tokenizer)
    lengths = tuple(dict.fromkeys(length or LENGTHS))
    for one in lengths:
        PairOptions(max_length=one)
    with Bars() as monitor:
        reader = ReaderOptions(text_unit=text_unit, text_field=text_field)
        source = open_inputs(inputs, reader) if inputs else open_source(list(machine_documents()))
        monitor.stage("making pairs", source.total_bytes, "bytes")
        found = pairs_at(source, made, options, lengths, monitor.advance)
    if plot is not None:
        save_chart(distributions_chart([one.lengths for one in found]), plot)
    what = ", ".join(inputs) if inputs else _MACHINE
    if as_json:
        print(json.dumps({"text": what, "lengths": [one.document() for one in found]}, indent=1))
        return
    screen = console()
    screen.print(pairs_table(found, screen.width))
    first = found[0]
    note = (
        f"Text: {what}; {first.counts['documents']:,} documents, {first.random_share:.1%} of the pairs of "
        f"{first.lengths.capacity} with a random next. The paper's figures are of Wikipedia."
    )
    print_notes([note])
    print_saved(plot)
