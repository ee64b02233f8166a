"""``nopad study lamb``: compare LAMB's moments (averages of gradients) with packs to those without packs.

With packs, LAMB's betas are raised to the power of the packing factor.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

from rich.table import Table

from nopad.cli.render import console, headed
from nopad.cli.study_output import AsJson, print_notes
from nopad.study.lamb import BETAS, LambRow, PowerRow, lamb_rows, powers

__all__ = ["lamb"]

_EXACT = 1e-12
_NOTES = (
    "Constant gradients: both moments of every parameter agree to {largest:.0e}, as the theorem says.",
    "With noise, the first moment is the same on average. The second is larger without packs: a mean of p gradients",
    "has 1/p of their noise. Nothing corrects that; LAMB's trust ratio cancels what is common to a tensor, Adam's does",
    "not. And the weights change once, and not p times: the theorem is about moments only.",
)


def lamb(as_json: AsJson = False) -> None:
    """Recompute the supplement's theorem on LAMB: p steps, against one step with p times the sequences and betas^p.

    Simulates the moments without and with packs on the same gradients, both constant and noisy.

    Examples:
      nopad study lamb

      nopad study lamb --json
    """
    corrected, rows = powers(), lamb_rows()
    if as_json:
        document = {"powers": [asdict(row) for row in corrected], "moments": [asdict(row) for row in rows]}
        print(json.dumps(document, indent=1))
        return
    screen = console()
    screen.print(f"supplement, E: betas ({BETAS[0]}, {BETAS[1]}) to the power of the packing factor", style="bold")
    screen.print(_powers_table(corrected))
    screen.print("moments after the same sequences, without packs and with packs", style="bold")
    screen.print(_moments_table(rows))
    largest = max(row.largest for row in rows if not row.noise)
    print_notes(note.format(largest=largest) for note in _NOTES)


def _powers_table(rows: Sequence[PowerRow]) -> Table:
    table = headed(["sequences per pack", "beta1", "printed", "difference", "beta2"], left=0)
    for row in rows:
        printed = ("", "") if row.printed is None else (f"{row.printed:g}", f"{row.beta1 - row.printed:+.4f}")
        table.add_row(f"{row.factor:g}", f"{row.beta1:.4f}", *printed, f"{row.beta2:.4f}")
    return table


def _moments_table(rows: Sequence[LambRow]) -> Table:
    heads = ["p", "noise / signal", "first moment apart", "with betas as before", "second moment", "formula", "cosine"]
    table = headed(heads, left=0)
    for at, row in enumerate(rows):
        begins = not at or rows[at - 1].factor != row.factor
        table.add_row(
            str(row.factor) if begins else "",
            f"{row.noise:g}",
            _share(row.first_apart),
            _share(row.first_apart_uncorrected),
            f"{row.second:.3f} x",
            f"{row.expected:.3f} x",
            f"{row.cosine:.3f}",
            end_section=at + 1 < len(rows) and rows[at + 1].factor != row.factor,
        )
    return table


def _share(value: float) -> str:
    return "0" if value < _EXACT else f"{value:.1%}"
