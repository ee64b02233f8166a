"""`StreamSummary`: what a step of a stream is, what this rank has read, and how full its packs were."""

from __future__ import annotations

from dataclasses import dataclass

from nopad.corpus.options import Counts
from nopad.wording import counted

__all__ = ["StreamSummary"]


@dataclass(frozen=True, kw_only=True)
class StreamSummary:
    """What a rank has read from its stream and given to training; print it to read it. It covers this rank only.

    Attributes:
        takes: what a rank takes in a micro-step, in words, such as "8 packs".
        world_size, accumulation: number of ranks, and of micro-steps per step.
        exhausted: "repeat": the source is read again after its end; "stop": the stream ends there.
        passes: number of passes over the source before the one that this rank is reading.
        records: number of records of a whole pass; None: not known, since no pass has ended.
        steps, sequences, tokens: number of whole steps taken, and of sequences and tokens in them on this rank.
        slots: number of slots (tokens and padding) in the packs of these steps on this rank; None: the loader was not
            given both `rows` and a capacity.
        held_sequences, held_tokens: number of sequences and tokens that this rank has read, and that are in no finished
            step yet.
        left_out: number of (sequences, tokens) that this rank read and left out at the ends of passes.
        counts: how many of the records that this rank read were kept, skipped, truncated and so on.
    """

    takes: str
    world_size: int
    accumulation: int
    exhausted: str
    passes: int
    records: int | None
    steps: int
    sequences: int
    tokens: int
    slots: int | None
    held_sequences: int
    held_tokens: int
    left_out: tuple[int, int]
    counts: Counts

    def __str__(self) -> str:
        """Return the summary as a few lines of text."""
        share = f" ({self.tokens / self.slots:.2%} of the slots)" if self.slots else ""
        known = "" if self.records is None else f", {self.records:,} records each"
        end = "begins again at its end" if self.exhausted == "repeat" else "stops at its end"
        lines = [
            f"step     {counted(self.world_size, 'rank')} x {counted(self.accumulation, 'micro-step')} x {self.takes}",
            f"stream   {end}; {self.passes:,} passes so far{known}",
            f"given    {self.steps:,} steps: {self.sequences:,} sequences, {self.tokens:,} tokens{share} on this rank",
            f"held     {self.held_sequences:,} sequences, {self.held_tokens:,} tokens read and not given yet",
        ]
        if any(self.left_out):
            lines.append(f"left out {self.left_out[0]:,} sequences, {self.left_out[1]:,} tokens: no whole step")
        lines += self._records()
        return "\n".join(lines)

    def _records(self) -> list[str]:
        counts = self.counts
        lost = {
            "bad, skipped": counts.bad_skipped,
            "empty, skipped": counts.empty_skipped,
            "truncated": counts.truncated,
            "split": counts.split,
            "dropped as too long": counts.dropped,
        }
        told = "".join(f", {number:,} {what}" for what, number in lost.items() if number)
        return [f"records  {counts.records:,} read on this rank{told}"]
