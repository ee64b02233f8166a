"""`RunnerStatistics`: the totals of a runner, and their table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from nopad.serving.packer import PackerStatistics
from nopad.wording import counted

__all__ = ["RunnerStatistics"]


@dataclass(frozen=True, kw_only=True)
class RunnerStatistics:
    """Totals of a runner since it was made.

    Attributes:
        packer: totals of the runner's packer, which count sequences; only `refused` counts requests. A request is one
            sequence, except for long texts (one sequence per window) and padded arrays (one per row).
        answered, failed: number of requests that ran and got a result (answered) or an error (failed).
        late: number of requests refused because their deadline could not be met; `packer.arrived` leaves them out.
        filler_tokens: number of slots that flat batches had beyond their tokens, since kernels are made for some widths
            only (`Core.flat`); `packer.slots` does not count them.
        padded_tokens: number of tokens, padding included, that the batches would have had if each had been padded to
            its longest sequence.
        counts: number of requests that were truncated or left out by the task, by reason.
        us_per_token: running average of the time per token in recent batches, those of the warm-up included, in
            microseconds; batches in which a sequence failed are not counted. None: there was no such batch.
        p50_ms, p99_ms: half, and 99 %, of the last 1,000 answered requests took at most this time from `submit` to the
            answer, in milliseconds; None: no request was answered.
    """

    packer: PackerStatistics
    answered: int
    failed: int
    late: int
    filler_tokens: int
    padded_tokens: int
    counts: Mapping[str, int]
    us_per_token: float | None
    p50_ms: float | None
    p99_ms: float | None

    @property
    def padding_saved(self) -> float:
        """Share of `padded_tokens` that nopad saved: ``1 - packer.tokens / padded_tokens``; 0.0 before the first batch.

        The empty slots of batches with rows, ``packer.slots - packer.tokens``, do not lower this share.
        """
        return 1 - self.packer.tokens / self.padded_tokens if self.padded_tokens else 0.0

    def __str__(self) -> str:
        """Return a small table, without the rows that have nothing to say.

        The rows: requests with the task's counts, sequences that were cancelled or have expired, what waits, batches by
        reason, padding saved, slots, and times.
        """
        packer = self.packer
        requests = {
            "answered": self.answered,
            "failed": self.failed,
            "refused (full)": packer.refused,
            "refused (too late)": self.late,
            **{reason.replace("_", " "): number for reason, number in self.counts.items()},
        }
        told = [f"{number:,} {what}" for what, number in requests.items() if number or what == "answered"]
        never_ran = {"cancelled": packer.cancelled, "expired": packer.expired}
        left = [f"{number:,} {what}" for what, number in never_ran.items() if number]
        waiting = f"{counted(packer.waiting, 'sequence')}, {counted(packer.waiting_tokens, 'token')}"
        reasons = ", ".join(f"{number:,} {reason}" for reason, number in packer.flushes.items() if number)
        rows = [
            ("requests", ", ".join(told)),
            *([("sequences", ", ".join(left))] if left else []),
            ("waiting", waiting),
        ]
        if packer.batches:
            batches = f"{packer.batches:,} {'batch' if packer.batches == 1 else 'batches'}"
            padded = f"{packer.tokens:,} tokens instead of {self.padded_tokens:,}"
            rows += [("batches", f"{batches}: {reasons}"), ("padding", f"{self.padding_saved:.1%} saved: {padded}")]
            if packer.slots > packer.tokens:
                rows.append(("slots", f"{packer.slots:,} computed, {1 - packer.efficiency:.1%} of them empty"))
        if self.filler_tokens:
            share = self.filler_tokens / (packer.tokens + self.filler_tokens)
            rows.append(("filler", f"{self.filler_tokens:,} slots beyond the tokens of batches, {share:.1%} of all"))
        if self.p50_ms is not None and self.p99_ms is not None:
            rows.append(("answer", f"half within {self.p50_ms:,.1f} ms, 99 % within {self.p99_ms:,.1f} ms"))
        if self.us_per_token is not None:
            rows.append(("token", f"{self.us_per_token:,.2f} µs"))
        return "\n".join(f"{name:<10}{value}" for name, value in rows)
