"""A `PackedLoader` as a torch `IterableDataset`, and a `DataLoader` whose worker processes build its batches.

Worker w of k builds the batches w, w + k, ...; torch takes them in turn, so workers never change the order. The
position of the loader in the main process is that of the training loop, not that of the workers, so its state is exact.
Torch's default random generator is not used, so that a resumed run draws the same numbers as an uninterrupted one.

A DataLoader that would put several of the loader's batches into one is refused, with a clearer message than the type
error from torch. The batches are already one rank's share. accelerate's `prepare`, and therefore transformers' own
Trainer, would divide them among ranks a second time, so both are refused. Lightning leaves loaders of an
`IterableDataset` as they are.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info
from torch.utils.data._utils.collate import default_collate_fn_map
from torch.utils.data._utils.fetch import _IterableDatasetFetcher

from nopad.batch import PackedBatch
from nopad.errors import OptionError
from nopad.loading.loader import PackedLoader
from nopad.options import Option

_WORKERS = Option(default=0, low=0, high=1 << 16, help="processes that build batches")

__all__ = ["TorchDataset", "TorchLoader"]


class TorchDataset(IterableDataset[PackedBatch]):
    """The batches of a loader as a torch dataset; use it as ``DataLoader(dataset, batch_size=None)``.

    Attributes:
        loader: the `PackedLoader`.
    """

    def __init__(self, loader: PackedLoader) -> None:
        """Make a dataset of the batches of `loader`."""
        self.loader = loader
        self.followed = False  # whether the main process counts the batches of worker processes

    def __iter__(self) -> Iterator[PackedBatch]:
        """Iterate over this process's share of the remaining batches of the epoch.

        Raises:
            OptionError: a DataLoader would put several batches into one; this is a worker process of a DataLoader
                that `PackedLoader.dataloader` did not make; or accelerate would share the batches out among ranks
                again. Reading the data may raise further errors, which `PackedLoader.__iter__` lists.
        """
        reader = sys._getframe(1).f_locals.get("self")
        if get_worker_info() is None:
            _check_not_prepared(self)
        _check_not_batched(reader)
        return self._batches()

    def _batches(self) -> Iterator[PackedBatch]:
        worker = get_worker_info()
        if worker is None:
            yield from self.loader
            return
        if not self.followed:
            raise OptionError(
                "these worker processes read batches of which the loader in the main process would not know, and every "
                f"epoch would be the same; use loader.dataloader(num_workers={worker.num_workers}) instead"
            )
        yield from self.loader.share(worker.id, worker.num_workers)

    def __len__(self) -> int:
        """Number of batches that a rank takes in the whole epoch, those already taken included.

        If the ranks, the size of a step or the balancing changed within this epoch, only the batches after the last
        change count.

        Raises:
            TypeError: the data are a stream, whose length is not known.
        """
        return len(self.loader)

    def set_epoch(self, epoch: int) -> None:
        """Go to the beginning of epoch number `epoch` (`PackedLoader.set_epoch`)."""
        self.loader.set_epoch(epoch)


class TorchLoader(DataLoader[PackedBatch]):
    """A `DataLoader` over the batches of a `PackedLoader`; `PackedLoader.dataloader` makes it.

    Iterating over it also advances the `PackedLoader`.
    """

    def __init__(self, loader: PackedLoader, *, num_workers: int = 0, **options: Any) -> None:
        """Make a DataLoader that builds the batches of `loader` in `num_workers` processes; 0: in this process.

        `options` are further options of the DataLoader, such as pin_memory and prefetch_factor.

        Raises:
            OptionError: an option is set that the loader decides itself, such as `batch_size`, `shuffle`, `collate_fn`
                or `persistent_workers`; `in_order` is False; or `num_workers` is not an integer from 0 to 65,536.
        """
        for name in (
            "batch_size",
            "shuffle",
            "sampler",
            "batch_sampler",
            "collate_fn",
            "drop_last",
            "persistent_workers",
        ):
            if options.get(name):
                raise OptionError(f"{name} is the loader's business; leave it out")
        if not options.get("in_order", True):
            raise OptionError("in_order=False would change the order of batches; leave it out")
        # Its own generator, since a DataLoader draws a seed for its workers whenever an epoch begins.
        options.setdefault("generator", torch.Generator().manual_seed(torch.initial_seed()))
        options.pop("batch_size", None)
        num_workers = _WORKERS.check("num_workers", num_workers)
        dataset = TorchDataset(loader)
        dataset.followed = num_workers > 0
        super().__init__(dataset, batch_size=None, num_workers=num_workers, **options)
        self.packed_loader = loader

    def __iter__(self) -> Any:
        """Iterate over the remaining batches of the epoch.

        Raises:
            OptionError: the worker processes gave too few batches; another iteration of the `PackedLoader` began
                meanwhile, or the `PackedLoader` was set to another position; or the ranks have different data, options
                or positions. Reading the data may raise further errors, which `PackedLoader.__iter__` lists.
        """
        if not self.num_workers:
            return super().__iter__()
        return self.packed_loader.follow(super().__iter__)

    def __len__(self) -> int:
        """Number of batches that a rank takes in the whole epoch, those already taken included.

        If the ranks, the size of a step or the balancing changed within this epoch, only the batches after the last
        change count.

        Raises:
            TypeError: the data are a stream, whose length is not known.
        """
        return len(self.packed_loader)

    def set_epoch(self, epoch: int) -> None:
        """Go to the beginning of epoch number `epoch` (`PackedLoader.set_epoch`)."""
        self.packed_loader.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the `PackedLoader` (`PackedLoader.state_dict`); this object has none of its own."""
        return self.packed_loader.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Set the `PackedLoader` to the position in a saved state (`PackedLoader.load_state_dict`)."""
        self.packed_loader.load_state_dict(state)


def _check_not_batched(reader: Any) -> None:
    """Refuse to let a DataLoader with a batch size read the dataset, whatever its `collate_fn`.

    The dataset itself does not know the batch size. `reader` does: it is the object that reads the dataset for the
    DataLoader, and that calls ``__iter__``.

    Raises:
        OptionError: the DataLoader has a batch size.
    """
    if isinstance(reader, _IterableDatasetFetcher) and reader.auto_collation:
        _refuse_batches_of_batches(None)


def _refuse_batches_of_batches(batch: Any, **_: Any) -> NoReturn:
    raise OptionError(
        "a DataLoader with a batch_size makes batches of single samples, and these are whole batches; give it "
        "batch_size=None, as in DataLoader(TorchDataset(loader), batch_size=None), or use loader.dataloader()"
    )


default_collate_fn_map[PackedBatch] = _refuse_batches_of_batches  # torch's documented way to collate a type


def _check_not_prepared(dataset: TorchDataset) -> None:
    """Refuse to let a DataLoader of accelerate read `dataset`.

    It would divide the batches among ranks a second time, and read one batch ahead of the training loop.

    Raises:
        OptionError: such a DataLoader is reading it.
    """
    state = getattr(sys.modules.get("accelerate.state"), "GradientState", None)
    reading = None if state is None else getattr(state(), "active_dataloader", None)
    inner = getattr(reading, "dataset", None)
    if reading is not None and dataset in (inner, getattr(inner, "dataset", None)):
        raise OptionError(
            "accelerate would share these batches out among ranks a second time; leave the loader out of "
            "accelerator.prepare and move each batch with batch.to(accelerator.device), or train with "
            "nopad.training.PackedTrainer in transformers"
        )
