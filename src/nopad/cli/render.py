"""Make tables, bars and sentences for a terminal; plain text if the output is piped or NO_COLOR is set."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from nopad.histogram import Histogram
from nopad.planning import Plan, lower_bound
from nopad.store import Manifest
from nopad.wording import counted

__all__ = [
    "bars",
    "console",
    "describe_bound",
    "fitted",
    "fitted_rows",
    "headed",
    "least_packs",
    "outcome",
    "plan_table",
]

Row = TypeVar("Row")

_BAR = 32
_PIPE_WIDTH = 160


def console() -> Console:
    """Return the console for results, which writes to stdout; if stdout is no terminal, it is 160 characters wide."""
    return Console(width=None if sys.stdout.isatty() else _PIPE_WIDTH, emoji=False, highlight=False, soft_wrap=False)


def describe_bound(histogram: Histogram, capacity: int, rows: Sequence[dict[str, Any]]) -> str:
    """Return a text on the least number of packs that is proven to be necessary without a depth limit.

    `rows` are `Plan.summary` dicts.
    """
    unlimited = [row for row in rows if row["depth"] is None]
    least = least_packs(histogram, capacity, rows)
    reached = any(row["packs"] == least for row in unlimited)
    searched = any(row["algorithm"] in ("auto", "optimal") for row in unlimited)
    return (
        f"No plan, however deep, can use fewer than {counted(least, 'pack')}: no more than "
        f"{histogram.sequences / least:.4f} sequences per pack, {histogram.tokens / (least * capacity):.3%} efficiency."
        + ("" if reached or searched else "\n(A quick bound: -a auto -d none may prove a tighter one.)")
    )


def least_packs(histogram: Histogram, capacity: int, rows: Sequence[Mapping[str, Any]]) -> int:
    """Return the highest known lower bound on the number of packs without a depth limit; it holds at every depth.

    Of `rows`, which are `Plan.summary` dicts, only those without a depth limit are used.
    """
    proven = [row["lower_bound"] for row in rows if row["depth"] is None]
    least: int = max([lower_bound(histogram, capacity, None).packs, *proven])
    return least


def plan_table(rows: Sequence[dict[str, Any]], width: int | None = None, without: Sequence[str] = ()) -> Table:
    """Return the table of plans that `nopad plan` prints; `rows` are `Plan.summary` dicts with ``seconds``.

    Columns in `without` are left out. If the table is still wider than `width` characters (None: no limit), up to four
    less important columns are left out too, and the caption names them.
    """
    return fitted(
        lambda left_out: _table(rows, [*left_out, *without]), ("strategies", "reached", "padding tokens", "time"), width
    )


def fitted(make: Callable[[Sequence[str]], Table], least: Sequence[str], width: int | None) -> Table:
    """Return a table, without some of its columns if it is wider than `width` characters; None: no limit.

    The columns in `least` are left out, in this order, until the table is narrow enough or none of them is left. So the
    table may still be wider than `width`. The caption names the columns left out. `make` is a function that gets the
    columns to leave out and returns the table.
    """
    left_out: list[str] = []
    table = make(left_out)
    for name in least:
        if (
            width is None
            or Measurement.get(measuring := Console(width=1000), measuring.options, table).maximum <= width
        ):
            break
        left_out.append(name)
        table = make(left_out)
    if left_out:
        table.caption = f"narrow terminal: without {', '.join(left_out)}"
    return table


def fitted_rows(
    columns: Mapping[str, Callable[[Row], str]],
    rows: Sequence[Row],
    least: Sequence[str],
    width: int,
    *,
    left: int = 1,
    style: Callable[[Row], str] = lambda row: "",
) -> Table:
    """Return a table of `rows`, without some of its columns if it is wider than `width` characters.

    The caption names the columns left out.

    Args:
        columns: by the head of each column, a function from a row to the text of its cell.
        rows: the rows, of any type.
        least: heads of the columns that may be left out, the first one first.
        width: number of characters in a line of the terminal.
        left: number of columns that are aligned to the left; the others are aligned to the right.
        style: a function from a row to its style, such as "yellow".
    """

    def make(left_out: Sequence[str]) -> Table:
        shown = {head: show for head, show in columns.items() if head not in left_out}
        table = headed(list(shown), left)
        for row in rows:
            table.add_row(*(show(row) for show in shown.values()), style=style(row))
        return table

    return fitted(make, least, width)


def headed(heads: Sequence[str], left: int = 1) -> Table:
    """Return a table without rows. The first `left` columns are aligned to the left, the others to the right."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, caption_justify="left")
    for at, head in enumerate(heads):
        table.add_column(head, justify="left" if at < left else "right", no_wrap=True)
    return table


def _table(rows: Sequence[dict[str, Any]], left_out: Sequence[str]) -> Table:
    """Return the table of plans that `nopad plan` prints, without the columns in `left_out`."""
    shown = {head: show for head, show in _COLUMNS.items() if head not in left_out}
    table = headed(["algorithm", *shown])
    best = max((row["efficiency"] for row in rows), default=0.0)
    for i, row in enumerate(rows):
        table.add_row(
            row["algorithm"],
            *(show(row) for show in shown.values()),
            style="bold green" if row["efficiency"] == best else "",
            end_section=i + 1 < len(rows) and rows[i + 1]["algorithm"] != row["algorithm"],
        )
    return table


_COLUMNS: dict[str, Callable[[dict[str, Any]], str]] = {
    "depth": lambda row: "max" if row["depth"] is None else str(row["depth"]),
    "reached": lambda row: str(row["max_depth_used"]),
    "strategies": lambda row: f"{row['strategies']:,}",
    "packs": lambda row: f"{row['packs']:,}",
    "above bound": lambda row: f"{row['packs'] - row['lower_bound']:,}",
    "padding tokens": lambda row: f"{row['padding_tokens']:,}",
    "efficiency": lambda row: f"{row['efficiency']:.3%}",
    "factor": lambda row: f"{row['packing_factor']:.3f}",
    "time": lambda row: seconds(row["seconds"]),
}


def bars(manifest: Manifest) -> Text:
    """Return two bars of real tokens and padding: one for rows of a single sequence each, and one for packs."""
    before = manifest.tokens / (manifest.sequences * manifest.capacity)
    text = Text()
    for name, rows, share in (("before", manifest.sequences, before), ("after", manifest.packs, manifest.efficiency)):
        full = min(_BAR, round(share * _BAR))
        text.append(f"  {name:<7}")
        text.append("█" * full, style="green")
        text.append("░" * (_BAR - full), style="red")
        text.append(f"  {rows:>12,} {'row ' if rows == 1 else 'rows'}   ")
        text.append(f"{1 - share:>7.2%} padding\n", style="bold" if name == "after" else "")
    return text


def outcome(manifest: Manifest, plan: Plan) -> Text:
    """Return the summary of a dataset that `nopad pack` prints.

    It has bars of padding, the number of packs and its lower bound, the plan's notes, what happened to records, the
    share of each source, and which columns are carried or left out.
    """
    text = bars(manifest)
    text.append(f"  packs: {plan.packs:,} for {counted(plan.sequences, 'sequence')} (")
    text.append(f"{plan.packing_factor:.2f} per pack", style="bold")
    text.append(
        f"), {'exactly' if not plan.gap else f'{plan.gap:,} above'} the proven minimum of {plan.lower_bound:,}\n"
    )
    for note in plan.notes:
        text.append(f"  note: {note}\n")
    counts = manifest.counts
    pairs = counts["documents"] > 0
    parts = [_pairs(counts) if pairs else counted(counts["records"], "record")]
    for name, word in (
        ("split", "split"),
        ("truncated", "truncated"),
        ("dropped", "dropped as over-long"),
        ("empty_skipped", "skipped as empty"),
        ("documents_empty", "documents without a sentence"),
        ("long_sentences", f"sentences too long ({_LONG.get(str(manifest.options.get('over_long')), '')})"),
        ("bad_skipped", "skipped as bad"),
        ("stripped", f"came with padding ({counted(counts['stripped_tokens'], 'token')}, removed)"),
        ("other_split", "held out" if manifest.options.get("split") == "train" else "not held out"),
    ):
        if counts[name]:
            parts.append(f"{counts[name]:,} {word}")
    text.append(f"  {'pairs' if pairs else 'records'}: {', '.join(parts)}\n")
    for part in manifest.sources:
        of = f"{part['name']}: {part['tokens']:,} tokens, {part['tokens'] / manifest.tokens:.2%}"
        text.append(
            f"  source {of}; {counted(part['sequences'], 'sequence')} of {counted(part['records'], 'record')}\n"
        )
    for what, names in (("are carried", list(manifest.carried)), ("are left out", manifest.source["left_out"])):
        if names:
            text.append(f"  columns that {what}: {', '.join(names)}\n")
    return text


_LONG = {"truncate": "truncated", "split": "split", "drop": "dropped"}


def _pairs(counts: Mapping[str, int]) -> str:
    """Return a text on BERT's pre-training pairs: how many there are, and of how many documents.

    It also has the share of pairs whose second side is from another document (a random next), and the share of tokens
    that were trimmed to fit.
    """
    share = counts["random_next"] / counts["sequences"]
    trimmed = counts["trimmed_tokens"] / (counts["tokens"] + counts["trimmed_tokens"])
    return (
        f"{counts['sequences']:,} of {counted(counts['documents'], 'document')}, {share:.1%} with a random next, "
        f"{trimmed:.1%} of tokens trimmed to fit"
    )


def seconds(value: float) -> str:
    """Return a duration, `value` seconds, as text in seconds or milliseconds."""
    return f"{value * 1e3:.1f} ms" if value < 1 else f"{value:.1f} s"
