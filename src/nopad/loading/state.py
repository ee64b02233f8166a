"""The state of a loader over stored tokens: a few integers, and the facts that a run must share to resume it.

A state is a dict that can be written as JSON. It holds the legs of the current epoch: the parts of the epoch in which
the numbers of ranks and nodes, the size of a step and the balancing stay the same (`nopad.loading.legs`). It also holds
the steps that each leg has taken, how many batches of the next step were taken, how many steps, sequences and tokens
were seen, and the fingerprints of data and plan.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from nopad.balance import Balance, Shape
from nopad.errors import FormatError, PlanMismatchError
from nopad.loading.legs import Leg
from nopad.loading.step import TOKEN_CAP

__all__ = ["Position", "check_format", "check_same", "read_state", "whole"]

_FORMAT, _VERSION = "nopad.loader", 1
_SHAPE = ("world_size", "node_size", "accumulation", "per_rank")


@dataclass(frozen=True, kw_only=True)
class Position:
    """How far a loader over stored tokens has come.

    Attributes:
        epoch: number of the epoch, from 0.
        past: finished legs of this epoch. A leg is a part of an epoch with the same ranks, size of a step and
            balancing.
        leg: the current leg, with the number of whole steps that it has taken.
        batches: number of micro-batches of the next step that each rank has taken already.
        steps_seen, sequences_seen, tokens_seen: number of whole steps since the run began, and of the sequences and
            tokens in them, on all ranks together.
    """

    epoch: int = 0
    past: tuple[Leg, ...] = ()
    leg: Leg
    batches: int = 0
    steps_seen: int = 0
    sequences_seen: int = 0
    tokens_seen: int = 0

    def at_start_of(self, epoch: int) -> Position:
        """Return the position at the beginning of epoch number `epoch`.

        `steps_seen`, `sequences_seen` and `tokens_seen` stay as they are. So do ranks, balancing and size of a step.
        """
        return replace(self, epoch=epoch, past=(), leg=replace(self.leg, steps=0), batches=0)

    def after_step(self, sequences: int, tokens: int) -> Position:
        """Return the position after one more step; it took `sequences` sequences and `tokens` tokens on all ranks."""
        return Position(
            epoch=self.epoch,
            past=self.past,
            leg=replace(self.leg, steps=self.leg.steps + 1),
            steps_seen=self.steps_seen + 1,
            sequences_seen=self.sequences_seen + sequences,
            tokens_seen=self.tokens_seen + tokens,
        )

    def resumed(self, leg: Leg) -> Position:
        """Return the position from which a loader with the ranks, size of a step and balancing of `leg` goes on.

        A leg is a part of an epoch in which these stay the same. If `leg` has the same ones as the position's own leg,
        the result is the position itself. Otherwise the result is the beginning of a new leg. The new leg takes the
        units of an unfinished step again, since the gradient of that step was never applied.
        """
        if leg.deals_as(self.leg):
            return self
        past = (*self.past, self.leg) if self.leg.steps else self.past
        return replace(self, past=past, leg=replace(leg, steps=0), batches=0)

    def state(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        """Return this position and `facts` as a state, a dict that can be written as JSON.

        `facts` are, by name, what a run that resumes from the state must share, such as a fingerprint of the data.
        """
        return {
            "format": _FORMAT,
            "format_version": _VERSION,
            "same": dict(facts),
            "epoch": self.epoch,
            "legs": [_written(leg) for leg in (*self.past, self.leg)],
            "batches": self.batches,
            **{name: getattr(self, name) for name in _SEEN},
        }


_SEEN = ("steps_seen", "sequences_seen", "tokens_seen")


def _written(leg: Leg) -> dict[str, Any]:
    shape = {name: getattr(leg.shape, name) for name in _SHAPE}
    return {**shape, "balance": asdict(leg.balance), "token_cap": leg.token_cap, "steps": leg.steps}


def check_format(state: Any, form: str, version: int, names: set[str], of: str) -> None:
    """Refuse a `state` that is not a dict of this format and version with these keys.

    `form` is the value that its key ``format`` must have, and `version` that of ``format_version``. `names` are the
    other keys, which must all be there, and no more. `of` says in messages whose state is expected, such as "a
    nopad.PackedLoader".

    Raises:
        FormatError: it is not such a state.
    """
    if not isinstance(state, Mapping) or state.get("format") != form:
        raise FormatError(f"this is no state of {of}; give what its state_dict() returned")
    found = state.get("format_version")
    if type(found) is not int or found != version:
        raise FormatError(f"this state is of format version {found!r}, and this nopad reads {version}; upgrade nopad")
    names = names | {"format", "format_version"}
    if set(state) != names:
        raise FormatError(f"a state has {', '.join(sorted(names))}; this one has {', '.join(sorted(map(str, state)))}")


def read_state(state: Any) -> tuple[Position, dict[str, Any]]:
    """Return the position and the facts (what the resuming run must share, by name) in a state.

    Raises:
        FormatError: `state` is not a state of a loader, is of another format version, or has impossible values.
    """
    check_format(state, _FORMAT, _VERSION, {"same", "epoch", "legs", "batches", *_SEEN}, "a nopad.PackedLoader")
    if not isinstance(state["same"], Mapping) or not isinstance(state["legs"], list) or not state["legs"]:
        raise FormatError("a state has a dict named 'same' and a list of 'legs'; this one does not")
    legs = [_read_leg(leg, number) for number, leg in enumerate(state["legs"])]
    position = Position(
        epoch=_count(state, "epoch"),
        past=tuple(legs[:-1]),
        leg=legs[-1],
        batches=_count(state, "batches"),
        **{name: _count(state, name) for name in _SEEN},
    )
    if not all(leg.steps for leg in position.past):
        raise FormatError("a state has no leg without steps but the last; this one does")
    steps = sum(leg.steps for leg in legs)
    if not steps <= position.steps_seen <= position.sequences_seen <= position.tokens_seen:
        raise FormatError(
            f"a state has seen at least the {steps} steps of its epoch, a sequence in each, and a token in each; this "
            f"one has {position.steps_seen} steps, {position.sequences_seen} sequences, {position.tokens_seen} tokens"
        )
    if position.batches >= position.leg.shape.accumulation:
        raise FormatError(
            f"a state has fewer 'batches' than a step has micro-steps ({position.leg.shape.accumulation}); this one "
            f"has {position.batches}"
        )
    return position, dict(state["same"])


def _read_leg(leg: Any, number: int) -> Leg:
    if not isinstance(leg, Mapping) or set(leg) != {*_SHAPE, "balance", "token_cap", "steps"}:
        raise FormatError(f"leg {number} of this state is no leg: {leg!r}")
    try:
        balance = {name: _tuples(value) for name, value in dict(leg["balance"]).items()}
        return Leg(
            shape=Shape(**{name: _count(leg, name) for name in _SHAPE}),
            balance=Balance(**balance),
            steps=_count(leg, "steps"),
            token_cap=TOKEN_CAP.check("token_cap", leg["token_cap"]),
        )
    except (TypeError, ValueError) as error:
        raise FormatError(f"leg {number} of this state cannot be: {error}") from error


def _tuples(value: Any) -> Any:
    """Return a list, and all lists in it, as tuples, since JSON has no tuples; other values are returned unchanged."""
    return tuple(_tuples(one) for one in value) if isinstance(value, list | tuple) else value


def whole(value: Any, name: str = "a number") -> int:
    """Return a value of a state if it is an integer of at least 0 that fits into 64 bits; `name` is for the message.

    Raises:
        FormatError: the value is no such integer.
    """
    if type(value) is not int or not 0 <= value < 2**63:
        raise FormatError(f"{name} of this state is {value!r}; expected an integer from 0")
    return value


def _count(state: Mapping[str, Any], name: str) -> int:
    return whole(state[name], name)


def check_same(there: Mapping[str, Any], here: Mapping[str, Any]) -> None:
    """Refuse a state whose facts (`there`) differ from those of this loader (`here`).

    Raises:
        PlanMismatchError: a fact differs; the message names each that does.
    """
    odd = [name for name in sorted({*there, *here}, key=str) if there.get(name) != here.get(name)]
    if odd:
        told = ", ".join(f"{name} is {_short(here.get(name))} and was {_short(there.get(name))}" for name in odd)
        raise PlanMismatchError(
            f"this state was saved by a loader of something else: {told}. Give the loader what it had then, or begin "
            "anew without the state"
        )


def _short(value: Any) -> str:
    text = str(value)
    return f"{text[:12]}..." if len(text) > 16 else text
