"""`Step`: what each rank takes in an optimiser step, and how its batches are built, from `PackedLoader`'s arguments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from nopad.batch import Flat, Rows
from nopad.batch.form import ALIGN, Form, check_form
from nopad.errors import OptionError
from nopad.loading.collate import plain
from nopad.loading.legs import Last
from nopad.loading.ranks import Ranks
from nopad.loading.supply import Collate, EpochCollate, Serving
from nopad.options import Option, check_choice, shown

__all__ = ["TOKEN_CAP", "Step"]

TOKEN_CAP = Option(default=None, none=True, high=2**63 - 1, help="most tokens of a rank's micro-step")
_PER_RANK = Option(default=1, help="units per rank and micro-step")
_ACCUMULATION = Option(default=1, help="micro-steps of an optimiser step")
_PREFETCH = Option(default=2, low=0, high=1024, help="batches built ahead")


@dataclass(frozen=True, kw_only=True)
class Step:
    """What a rank takes in a step, and how its batches are built. `Step.of` makes it.

    Attributes not listed here are the arguments of `PackedLoader` of the same names, after their check.

    Attributes:
        per_rank: number of rows or sequences per rank and micro-step; 1 with `tokens`.
        in_rows: whether the step was given by ``rows=``.
        unpacked: whether the step was given by ``sequences=``, so that sequences are not packed.
        capacity: maximum number of tokens of a pack: the argument `tokens`, or else `capacity`; None: neither was
            given.
        flat: whether all sequences of a batch lie in one flat row.
    """

    per_rank: int
    in_rows: bool
    unpacked: bool
    capacity: int | None
    tokens: int | None
    token_cap: int | None
    accumulation: int
    last: Last
    align: int
    form: Form | None
    flat: bool
    collate: Collate
    prefetch: int

    @classmethod
    def of(
        cls,
        *,
        stream: bool,
        rows: int | None,
        tokens: int | None,
        sequences: int | None,
        capacity: int | None,
        token_cap: int | None,
        accumulation: int,
        last: Last,
        align: int,
        form: Form | None,
        collate: Collate | None,
        prefetch: int,
    ) -> Step:
        """Check the arguments that define a step, and return the step.

        The arguments are those of `PackedLoader`; `stream` says whether the data are a stream.

        Raises:
            OptionError: an argument is invalid, or two contradict each other.
        """
        taken = _per_rank(rows, tokens, sequences, capacity)
        prefetch = _PREFETCH.check("prefetch", prefetch)
        accumulation = int(_ACCUMULATION.check("accumulation", accumulation))
        last = check_choice("last", last, Last)
        capacity = capacity if tokens is None else tokens
        align = _aligned(align, capacity)
        form = None if form is None else _fitting(check_form(form), align, packed=capacity is not None)
        unpacked = sequences is not None
        return cls(
            per_rank=taken,
            in_rows=rows is not None,
            unpacked=unpacked,
            capacity=capacity,
            tokens=tokens,
            token_cap=_capped(token_cap, form, unpacked=unpacked, stream=stream),
            accumulation=accumulation,
            last=last,
            align=align,
            form=form,
            flat=rows is None and align == 1 if form is None else isinstance(form, Flat),
            collate=plain if collate is None else _called(collate),
            prefetch=prefetch,
        )

    def serving(self, ranks: Ranks, capacity: int, group_size: int = 1) -> Serving:
        """Return how batches of this step are built for a rank (`Serving`).

        Args:
            ranks: this process's rank and the number of ranks.
            capacity: maximum number of tokens of a row, for the default form.
            group_size: number of sequences in each group, if groups are dealt; 1: no groups are dealt.

        Raises:
            OptionError: a rank takes a number of sequences that is not a multiple of `group_size`.
        """
        rows = None if self.last == "short" else self.per_rank
        return Serving(
            ranks=ranks,
            accumulation=self.accumulation,
            per_rank=_groups_per_rank(self.per_rank, group_size),
            rows=self.in_rows,
            tokens=self.tokens,
            token_cap=self.token_cap,
            form=self.form or (Flat() if self.flat else Rows(capacity, rows=rows, align=self.align)),
            collate=self.collate,
            prefetch=self.prefetch,
        )


def _per_rank(rows: int | None, tokens: int | None, sequences: int | None, capacity: int | None) -> int:
    """Return how many units (packs or single sequences) a rank takes in a micro-step; if `tokens` is given, this is 1.

    Raises:
        OptionError: not exactly one of `rows`, `tokens` and `sequences` is given; the given number is out of range; or
            `capacity` is given together with `tokens` or `sequences`.
    """
    given = {name: n for name, n in (("rows", rows), ("tokens", tokens), ("sequences", sequences)) if n is not None}
    if len(given) != 1:
        raise OptionError(
            f"a step is rows, or tokens, or sequences, per rank; given: {', '.join(given) or 'none'}; give exactly one"
        )
    ((name, number),) = given.items()
    number = _PER_RANK.check(name, number)
    if name != "rows" and capacity is not None:
        raise OptionError(
            f"{name} per rank make one flat row without padding, which has no capacity; leave capacity out"
        )
    return 1 if name == "tokens" else number


def _aligned(align: int, capacity: int | None) -> int:
    """Check `align` and return it.

    Raises:
        OptionError: `align` is out of range, or is above 1 without a `capacity`.
    """
    align = ALIGN.check("align", align)
    if align > 1 and capacity is None:
        raise OptionError("align is for packs that are planned; give a capacity, or tokens")
    return align


def _fitting(form: Form, align: int, *, packed: bool) -> Form:
    """Return `form` after checking that it aligns sequences to multiples of `align` slots.

    `Flat` aligns to multiples of 1. If `packed` is False, sequences are not packed, and nothing is checked.

    Raises:
        OptionError: `packed` is True, and `form` aligns sequences to multiples of another number.
    """
    if packed and getattr(form, "align", 1) != align:
        raise OptionError(f"align is {align}, and {form} does not align sequences so; leave form out, or let it")
    return form


def _capped(token_cap: int | None, form: Form | None, *, unpacked: bool, stream: bool) -> int | None:
    """Return `token_cap` after checking that it can be used.

    Args:
        token_cap: maximum number of tokens per rank and micro-step; None: no limit.
        form: the form of the batches; None: the default form.
        unpacked: whether the step is given by ``sequences=``, so that sequences are not packed.
        stream: whether the data are a stream.

    Raises:
        OptionError: `token_cap` is out of range; or it is given although `unpacked` is False, `stream` is True, or
            `form` is neither None nor `Flat`.
    """
    cap = TOKEN_CAP.check("token_cap", token_cap)
    if cap is None:
        return None
    if not unpacked:
        raise OptionError("token_cap is for sequences=; rows of a capacity, and tokens=, are a limit themselves")
    if stream:
        raise OptionError(
            f"token_cap is for stored tokens; of a stream, tokens={cap} takes at most so many per rank and micro-step, "
            "and depth= says of how many sequences"
        )
    if not (form is None or isinstance(form, Flat)):
        raise OptionError(f"token_cap counts tokens, and {form} adds padding; leave form or token_cap out")
    return int(cap)


def _called(collate: Any) -> Any:
    """Return `collate` after checking that it can make batches.

    Raises:
        OptionError: it is neither a function nor an `EpochCollate`.
    """
    if not callable(collate) and not isinstance(collate, EpochCollate):
        raise OptionError(f"collate is {shown(collate)}; it is a function that makes a nopad.PackedBatch, or None")
    return collate


def _groups_per_rank(per_rank: int, size: int) -> int:
    """Return how many groups a rank takes in a micro-step: ``per_rank / size``.

    The rank takes `per_rank` sequences, and each group has `size` sequences.

    Raises:
        OptionError: `per_rank`, a number of sequences, is not a multiple of `size`.
    """
    if per_rank % size:
        raise OptionError(f"a rank takes {per_rank} sequences, and groups have {size}; give a multiple of {size}")
    return per_rank // size
