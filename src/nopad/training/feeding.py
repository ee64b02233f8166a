"""Feed a loader's batches to transformers' Trainer, and correct the Trainer's counts of epochs and steps."""

from __future__ import annotations

import math
from typing import Any

from transformers.trainer_callback import TrainerCallback, TrainerState

from nopad.errors import OptionError
from nopad.loading import PackedLoader
from nopad.loading.summary import Summary
from nopad.loading.torch import TorchLoader
from nopad.properties import cached_property

__all__ = ["Ahead", "FedLoader", "Progress"]


class Ahead:
    """The numbers of optimiser steps that a loader has left: in the current epoch, and in later ones.

    Epochs may differ in length.

    Attributes:
        epoch: number of the current epoch.
        left: number of steps left in the current epoch.
    """

    def __init__(self, loader: PackedLoader, left: int) -> None:
        self.epoch, self.left, self._loader = loader.epoch, left, loader
        self._whole: dict[int, int] = {}

    @classmethod
    def of(cls, loader: PackedLoader) -> Ahead | None:
        """Return an `Ahead` of a loader, from where it stands; None if its epochs have no known length.

        Raises:
            OptionError: the loader stands in the middle of a step.
        """
        state = loader.state_dict()
        if state.get("batches"):
            raise OptionError(
                f"the loader stands in the middle of a step, after {state['batches']} of {loader.accumulation} "
                "micro-steps; load a state that was saved between two steps"
            )
        try:
            steps = len(loader) // loader.accumulation
        except TypeError:
            return None
        return cls(loader, steps - state["legs"][-1]["steps"])

    def whole(self, epoch: int) -> int:
        """Return how many optimiser steps epoch number `epoch` has from beginning to end; epochs count from 0."""
        if epoch not in self._whole:
            self._whole[epoch] = self._loader.steps_in(epoch)
        return self._whole[epoch]

    def steps(self, epochs: float) -> int:
        """Return the number of steps left until `epochs` epochs, counted from epoch 0, are over; 0 if they are over.

        `epochs` may be fractional, like transformers' ``num_train_epochs``; the number of steps is then rounded up.
        """
        last = max(math.ceil(epochs) - 1, self.epoch)
        without = math.floor((last + 1 - epochs) * self.whole(last))
        return max(self.left + sum(map(self.whole, range(self.epoch + 1, last + 1))) - without, 0)

    def epochs(self, steps: int) -> list[int]:
        """Return the length, in steps, of each epoch that the next `steps` steps reach into.

        The first entry is the number of steps left in the current epoch; the others are lengths of whole epochs.
        """
        found = [self.left] if steps > 0 else []
        beyond = steps - self.left
        while beyond > 0:
            found.append(self.whole(self.epoch + len(found)))
            beyond -= found[-1]
        return found


class FedLoader(TorchLoader):
    """A DataLoader that gives the Trainer the batches of a `PackedLoader`.

    The Trainer and the loader may number the same epoch differently; `set_epoch` takes the Trainer's number.
    """

    _first: tuple[int, int] | None = None

    @cached_property
    def summary(self) -> Summary:
        """The loader's summary of the epoch in which the Trainer begins; made when it is first asked for."""
        found = self.packed_loader.summary()
        assert isinstance(found, Summary)  # the Trainer asks only where there is a length, and a stream has none
        return found

    def set_epoch(self, epoch: int) -> None:
        """Go to the epoch to which the Trainer gives the number `epoch`.

        The first call changes nothing: its `epoch`, n, stands for the loader's current epoch, m, which goes on from
        where the loader stands. A later call goes to the beginning of the loader's epoch ``m + epoch - n``; if the
        loader is in that epoch already, nothing changes.
        """
        if self._first is None:
            self._first = epoch, self.packed_loader.epoch
        given, stood = self._first
        self.packed_loader.set_epoch(stood + epoch - given)


class Progress(TrainerCallback):
    """A callback that sets the Trainer's epoch numbers to the loader's, which count from the loader's first epoch.

    The Trainer itself would count epochs from where training resumed, as if all epochs were equally long.
    """

    def __init__(self, loader: PackedLoader, ahead: Ahead, epochs: int) -> None:
        self.loader, self.ahead, self.last = loader, ahead, epochs
        self.epoch = ahead.epoch
        self.begun = loader.steps_seen - (ahead.whole(self.epoch) - ahead.left)  # steps seen when this epoch began

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **_: Any) -> None:
        """Set the number of epochs that the Trainer reports for the whole training."""
        state.num_train_epochs = self.last

    def on_step_end(self, args: Any, state: TrainerState, control: Any, **_: Any) -> None:
        """Set ``state.epoch`` to the number of epochs that are over, plus the finished share of the current one."""
        if self.loader.epoch != self.epoch:
            self.epoch, self.begun = self.loader.epoch, self.loader.steps_seen - 1
        state.epoch = self.epoch + (self.loader.steps_seen - self.begun) / self.ahead.whole(self.epoch)
