"""Simulate several ranks in one process: the `Step` that a loss is given, and collectives over all ranks.

Ranks run one after the other, so in the first pass a collective cannot know the values of later ranks. It then takes
the current rank's value for every rank, and records what each rank sends. Passes are repeated with the recorded values
until these no longer change. Where ranks only exchange counts, one repetition is enough.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
from torch import Tensor, distributed

__all__ = ["Step", "World"]

PASSES = 5


@dataclass
class World:
    """Simulates the ranks of a step one after another, with the values that they exchange in collectives.

    The step runs in `settled`, which repeats it until these values no longer change. In `open`, the functions of
    torch.distributed work on these ranks. The caller sets `rank` before each rank's part.

    Attributes:
        ranks: number of ranks.
        rank: number of the rank that runs now, from 0.
        _said: for each rank, the values that it has sent in this run of the step, in order.
        _known: the values that all ranks sent in the run before; None: this is the first run.
    """

    ranks: int
    rank: int = 0
    _said: list[list[Any]] = field(default_factory=list)
    _known: list[list[Any]] | None = None

    def settled(self, run: Callable[[], Any]) -> Any:
        """Call `run` until the values that ranks send no longer change, and return its last result.

        Raises:
            RuntimeError: the values still change after 5 calls, or a rank does not take part in a collective.
        """
        for _ in range(PASSES):
            self._said = [[] for _ in range(self.ranks)]
            found = run()
            if len({len(said) for said in self._said}) > 1:
                raise RuntimeError("not every rank took part in every collective: real ranks would wait forever")
            if not self._said[0] or (self._known is not None and _same(self._said, self._known)):
                return found
            self._known = self._said
        raise RuntimeError(f"what ranks exchange still changes after {PASSES} passes, so ranks cannot be simulated")

    def everybody(self, value: Any) -> list[Any]:
        """Send `value` from the rank that runs now to all ranks; return the values of all ranks, in their order.

        The values of the other ranks are those of the run before. In the first run, they are not known yet, and `value`
        stands for each of them.
        """
        value = value.detach().clone() if isinstance(value, Tensor) else value
        mine = self._said[self.rank] if self._said else []
        mine.append(value)
        if self._known is None or len(self._known[self.rank]) < len(mine):
            return [value] * self.ranks
        return [said[len(mine) - 1] for said in self._known[: self.rank]] + [
            value,
            *(said[len(mine) - 1] for said in self._known[self.rank + 1 :]),
        ]

    @contextmanager
    def open(self) -> Iterator[None]:
        """In a ``with`` block, let torch.distributed's functions work on these ranks; with one rank, change nothing.

        These functions are `all_reduce`, `all_gather`, `all_gather_object`, `barrier`, `is_initialized`, and those that
        tell the rank, the number of ranks and the backend. Other functions stay as they are.
        """
        if self.ranks == 1:
            yield
            return
        instead = {
            "is_initialized": lambda: True,
            "get_backend": lambda group=None: "gloo",
            "get_rank": lambda group=None: self.rank,
            "get_world_size": lambda group=None: self.ranks,
            "all_reduce": self._all_reduce,
            "all_gather": self._all_gather,
            "all_gather_object": self._all_gather_object,
            "barrier": lambda *args, **kwargs: None,
        }
        with ExitStack() as stack:
            for name, function in instead.items():
                stack.enter_context(mock.patch.object(distributed, name, function))
            yield

    def _all_reduce(self, tensor: Tensor, op: Any = None, group: Any = None, async_op: bool = False) -> Any:
        kinds: dict[Any, Callable[[Tensor], Tensor]] = {
            distributed.ReduceOp.SUM: lambda stack: stack.sum(0),
            distributed.ReduceOp.AVG: lambda stack: stack.mean(0),
            distributed.ReduceOp.MAX: lambda stack: stack.amax(0),
            distributed.ReduceOp.MIN: lambda stack: stack.amin(0),
        }
        wanted = distributed.ReduceOp.SUM if op is None else op
        reduce = next((made for kind, made in kinds.items() if kind == wanted), None)
        if reduce is None:
            raise NotImplementedError(f"the simulated ranks reduce by SUM, AVG, MAX and MIN, not by {op}")
        with torch.no_grad():
            tensor.copy_(reduce(torch.stack(self.everybody(tensor))).to(tensor.dtype))
        return mock.Mock() if async_op else None

    def _all_gather(self, tensor_list: list[Tensor], tensor: Tensor, group: Any = None, async_op: bool = False) -> Any:
        with torch.no_grad():
            for slot, value in zip(tensor_list, self.everybody(tensor), strict=True):
                slot.copy_(value)
        return mock.Mock() if async_op else None

    def _all_gather_object(self, object_list: list[Any], obj: Any, group: Any = None) -> None:
        object_list[:] = self.everybody(obj)


@dataclass(frozen=True)
class Step:
    """What a training loop knows when it computes the loss of one micro-batch; third argument of `audit_step`'s `loss`.

    Attributes:
        rank, ranks: number of the rank that computes this loss, from 0, and the number of ranks.
        micro, accumulation: number of the micro-batch on its rank, from 0, and the number of micro-batches per rank.
        batches: all micro-batches of this rank in this step.
        num_items_in_batch: number of labels in the step, over all micro-batches and ranks, counted as transformers'
            Trainer does: for a causal model, without the first label of each row. A scalar tensor; None: a batch has no
            labels.

    >>> import nopad
    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    >>> model = nopad.packed(LlamaForCausalLM(LlamaConfig(vocab_size=64, **sizes)))
    >>> rows = [{"input_ids": list(range(3, 3 + n)), "labels": list(range(3, 3 + n))} for n in (7, 3, 12, 5, 9, 4, 15)]
    >>> def collate(features):
    ...     return nopad.PackedBatch.from_features(features, causal=True)
    >>> def loss(model, batch, step):
    ...     return model(**batch, num_items_in_batch=step.num_items_in_batch).loss * step.ranks
    >>> nopad.audit_step(model, rows, collate, loss).passed
    True
    """

    rank: int
    ranks: int
    micro: int
    accumulation: int
    batches: Sequence[Mapping[str, Any]]
    num_items_in_batch: Tensor | None
    _world: World

    def over_ranks(self, value: Any) -> Any:
        """Return the sum of a number or tensor over all ranks; `value` is the one of this rank.

        `torch.distributed.all_reduce` may be used instead.
        """
        return sum(self._world.everybody(value))


def _same(said: list[list[Any]], known: list[list[Any]]) -> bool:
    pairs = [pair for mine, theirs in zip(said, known, strict=True) for pair in zip(mine, theirs, strict=False)]
    return all(
        torch.equal(one.nan_to_num(), other.nan_to_num())
        if isinstance(one, Tensor) and isinstance(other, Tensor)
        else one is other or one == other
        for one, other in pairs
    )
