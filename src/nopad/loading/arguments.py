"""Checks of arguments of `PackedLoader`, mostly of those that define a step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nopad.batch.form import ALIGN, Flat, Form
from nopad.errors import OptionError
from nopad.options import Option

__all__ = [
    "TOKEN_CAP",
    "aligned",
    "capped",
    "fitting",
    "groups_per_rank",
    "per_rank",
    "refuse_dealing",
    "refuse_torchs",
]

TOKEN_CAP = Option(default=None, none=True, high=2**63 - 1, help="most tokens of a rank's micro-step")
_PER_RANK = Option(default=1, help="units per rank and micro-step")


# Options of torch's DataLoader, and the arguments that replace them here
_TORCHS = {
    "batch_size": "rows= (packs), tokens= or sequences= say what a micro-step has",
    "shuffle": "packs are dealt anew at random in every epoch, by seed=; a stream is shuffled with shuffle_buffer=",
    "sampler": "balance= and seed= say which sequences a step gets",
    "drop_last": 'last= is "drop", "fill", "short" or "refuse"',
    "collate_fn": "collate= makes the batches",
    "num_workers": "loader.dataloader(num_workers=...) builds batches in processes, prefetch= in a thread",
}


def refuse_torchs(options: Mapping[str, Any]) -> None:
    """Refuse options of torch's `DataLoader` that `PackedLoader` has under another name.

    Raises:
        OptionError: there is such an option; the message says what to use instead.
    """
    for name in _TORCHS.keys() & options.keys():
        raise OptionError(f"{name} is an option of torch's DataLoader, and not of PackedLoader: {_TORCHS[name]}")


def refuse_dealing(**given: Any) -> None:
    """Refuse, for a stream, the arguments that only an epoch of known size can honour, such as `balance` and `groups`.

    `given` are the values of such arguments of `PackedLoader`, by name.

    Raises:
        OptionError: one of these arguments is not at its default.
    """
    usual = {"balance": "karmarkar_karp", "cost": None, "seed": 0, "groups": None, "together": "rank", "align": 1}
    usual["host_dir"] = None
    odd = [name for name, value in given.items() if value is not usual[name] and value != usual[name]]
    if odd:
        raise OptionError(
            f"{', '.join(odd)} say how an epoch is dealt; a stream is dealt as it comes, record after record, and its "
            "packs are equally full: leave them out (seed= goes with shuffle_buffer=, which shuffles a stream)"
        )


def per_rank(rows: int | None, tokens: int | None, sequences: int | None, capacity: int | None) -> int:
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


def aligned(align: int, capacity: int | None, options: dict[str, Any]) -> int:
    """Check `align` and return it; an `align` above 1 is also added to `options`, the options of the plan, in place.

    Raises:
        OptionError: `align` is out of range, or is above 1 without a `capacity`.
    """
    align = ALIGN.check("align", align)
    if align > 1:
        if capacity is None:
            raise OptionError("align is for packs that are planned; give a capacity, or tokens")
        options["align"] = align
    return align


def fitting(form: Form, align: int, *, packed: bool) -> Form:
    """Return `form` after checking that it aligns sequences to multiples of `align` slots.

    `Flat` aligns to multiples of 1. If `packed` is False, sequences are not packed, and nothing is checked.

    Raises:
        OptionError: `packed` is True, and `form` aligns sequences to multiples of another number.
    """
    if packed and getattr(form, "align", 1) != align:
        raise OptionError(f"align is {align}, and {form} does not align sequences so; leave form out, or let it")
    return form


def capped(token_cap: int | None, form: Form | None, *, unpacked: bool, stream: bool) -> int | None:
    """Return `token_cap`, the most tokens per rank and micro-step, after checking that it can be used; None: no limit.

    Args:
        token_cap: the limit, as in `PackedLoader`.
        form: the form of the batches; None: the default form.
        unpacked: whether the loader was given ``sequences=``, so that sequences are not packed.
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


def groups_per_rank(per_rank: int, size: int) -> int:
    """Return how many groups of `size` sequences each a rank takes in a micro-step: ``per_rank / size``.

    Raises:
        OptionError: `per_rank`, a number of sequences, is not a multiple of `size`.
    """
    if per_rank % size:
        raise OptionError(f"a rank takes {per_rank} sequences, and groups have {size}; give a multiple of {size}")
    return per_rank // size
