"""Warn if a packed dataset is read at random, which is slow; and refuse packs that a DataLoader tries to stack."""

from __future__ import annotations

import sys
import warnings
from typing import Any, NoReturn

from nopad.errors import OptionError
from nopad.store.row_groups import PackedRow

__all__ = ["Reads", "refuse_stacking"]

_LOOK_EVERY = 64  # check for random reads after this many decoded row groups
_FEW = 2  # reads are random if fewer rows are read per decoded row group


class Reads:
    """Counts the rows that are read by number, and the row groups that are decoded for them.

    A user warning is given once if fewer than two rows are read for each row group that is decoded (`count_row`).
    """

    def __init__(self, rows_per_group: int) -> None:
        """Begin to count; `rows_per_group` is the number of packs in a row group."""
        self._rows_per_group, self._warned = rows_per_group, False
        self.begin_again()

    def begin_again(self) -> None:
        """Set both counts to 0. If the warning was given before, it is still not given again."""
        self._rows = self._decoded = 0

    def count_decoded(self) -> None:
        """Count one decoded row group."""
        self._decoded += 1

    def count_row(self) -> None:
        """Count one row that is read by number.

        Once 64 row groups have been decoded, the warning is given if fewer than two rows were read per decoded row
        group. Then both counts begin anew. The warning is given only once, and never if row groups have at most two
        packs.
        """
        self._rows += 1
        if self._decoded < _LOOK_EVERY:
            return
        rows, decoded = self._rows, self._decoded
        self.begin_again()
        if not self._warned and rows < _FEW * decoded and self._rows_per_group > _FEW:
            self._warned = True
            _warn_of_random_reads(rows, decoded, self._rows_per_group)


def _warn_of_random_reads(rows: int, decoded: int, rows_per_group: int) -> None:
    """Warn that rows are read at random: the last `rows` rows needed `decoded` row groups to be decoded.

    `rows_per_group` is the number of packs in a row group. The warning points to the line that indexed the dataset. If
    a DataLoader has several workers, only the first one warns.
    """
    torch_data = sys.modules.get("torch.utils.data")
    worker = None if torch_data is None else torch_data.get_worker_info()
    if worker is not None and worker.id > 0:
        return
    warnings.warn(
        f"packs are read at random: the last {rows:,} of them cost the decoding of {decoded:,} row groups of "
        f"{rows_per_group:,} packs, a hundred times what it costs in order. Give the trainer "
        "dataset.to_hf(), whose rows are in memory, or train_sampling_strategy='sequential'; give a DataLoader "
        "shuffle=False (packs are stored in random order, unless they were packed with another), or "
        "sampler=dataset.order(seed, epoch).tolist(); in a loop read dataset.read(dataset.order(seed, epoch))",
        UserWarning,
        stacklevel=4,
    )


def refuse_stacking() -> None:
    """Make torch's default collate function raise an OptionError for packs, which it would otherwise stack.

    The message names `PackedDataset.collator`, which joins packs. Nothing is done if torch's DataLoader is not
    imported.
    """
    collate = sys.modules.get("torch.utils.data._utils.collate")
    if collate is not None:
        collate.default_collate_fn_map[PackedRow] = _refuse  # torch's documented way to collate a type


def _refuse(batch: Any, **_: Any) -> NoReturn:
    raise OptionError(
        "torch would stack packs, which differ in length; give the DataLoader collate_fn=dataset.collator(), or "
        "another function that takes rows"
    )
