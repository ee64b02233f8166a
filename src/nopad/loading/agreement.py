"""A check that all ranks load the same data in the same way, so that a mistake is an error at once, not a hang later.

Before a rank first iterates, it sends to all other ranks what must be the same everywhere: fingerprints of data and
plan, the seed, the step, the world size, the position and more. After its loader is set to another position, it sends
them again before the next iteration. With a single rank, or if torch.distributed is not initialised, nothing is
compared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nopad.errors import OptionError
from nopad.loading.ranks import Ranks, torch_distributed

__all__ = ["check_agreement", "exchange_of"]

Exchange = Callable[[Any], Sequence[Any]]  # sends one object, and returns the objects of all processes


def exchange_of(ranks: Ranks) -> Exchange | None:
    """Return a function that all ranks call together, each with one object, and that returns the objects of all ranks.

    The ranks are the processes of ``ranks.group`` (None: of the default group of torch.distributed). The objects are in
    the order of the processes in the group. The result is None if the group has a single process, or torch.distributed
    is not initialised.
    """
    distributed = torch_distributed()
    if distributed is None:
        return None
    group = ranks.group.get_group() if hasattr(ranks.group, "get_group") else ranks.group
    size = distributed.get_world_size(group)
    if size == 1:
        return None

    def exchange(mine: Any) -> Sequence[Any]:
        found: list[Any] = [None] * size
        distributed.all_gather_object(found, mine, group=group)
        return found

    return exchange


def check_agreement(ranks: Ranks, facts: Mapping[str, Any], exchange: Exchange | None) -> None:
    """Compare the facts and the rank number of this process with those of all other ranks.

    Args:
        ranks: this process's rank and the number of ranks.
        facts: what must be the same on all ranks, by name, such as a fingerprint of the data and the seed.
        exchange: a function that all ranks call together, as from `exchange_of`; None: nothing is compared.

    Raises:
        OptionError: a fact differs, or the processes do not have the ranks 0 to ``world_size - 1``, each once. If
            `facts` include the world size, all ranks raise the same message.
    """
    if exchange is None:
        return
    everyone = exchange({"rank": ranks.rank, "facts": dict(facts)})
    for name in dict.fromkeys(name for one in everyone for name in one["facts"]):
        values = [one["facts"].get(name) for one in everyone]
        odd = [place for place, value in enumerate(values) if value != values[0]]
        if odd:
            raise OptionError(
                f"the ranks disagree about {name}: {_short(values[0])} on process 0, {_short(values[odd[0]])} on "
                f"process {odd[0]} ({len(odd)} of {len(values)} differ from process 0); give all the same"
            )
    numbers = [one["rank"] for one in everyone]
    if sorted(numbers) != list(range(ranks.world_size)):
        raise OptionError(
            f"{len(numbers)} processes have the ranks {_short(sorted(numbers))}; expected each of 0 to "
            f"{ranks.world_size - 1} once: tensor- and pipeline-parallel peers share a rank, so give the group of "
            "processes that take different data"
        )


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
