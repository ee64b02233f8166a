"""Handle failures of training: a loss that is not finite (its batch is saved), too little memory, and a full disk."""

from __future__ import annotations

import errno
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nopad.batch import PackedBatch
from nopad.batch.guard import PackedMask, layout_of
from nopad.batch.layout import Layout
from nopad.errors import DeviceMemoryError, FormatError, LossError, OptionError, StorageError
from nopad.losses import over_ranks
from nopad.notation import from_json

__all__ = ["Watch", "check_unscaled", "enough_memory", "enough_room", "load_batch", "save_batch"]

NAME = "nopad_batch_{rank}.safetensors"
MASKS = ("attention_mask", "decoder_attention_mask")
ARRAYS = ("seq_lengths", "starts", "order")


class Watch:
    """Checks the losses of a step's micro-batches, and stops all ranks together if any loss is not finite."""

    def __init__(self) -> None:
        self._step: list[tuple[Tensor, PackedBatch]] = []

    def add(self, loss: Tensor, batch: PackedBatch) -> None:
        """Keep the loss of a micro-batch and the batch, without waiting for the device."""
        self._step.append((loss.detach(), batch))

    def end_step(self, folder: Path, where: str, rank: int) -> None:
        """Check the losses of the step that is over, on all ranks.

        Args:
            folder: folder in which the batch of a bad loss is saved.
            where: text with which the error message begins.
            rank: number of this rank, for the file's name.

        Raises:
            LossError: a loss is NaN or infinite on some rank; that rank has saved its first such batch in `folder`.
        """
        step, self._step = self._step, []
        if not step:
            return
        losses = torch.stack([loss.reshape(()) for loss, _ in step])
        bad = (~losses.isfinite()).double() if losses.device.type != "mps" else (~losses.isfinite()).float()
        if not float(over_ranks(bad.sum())):
            return
        mine = bad.nonzero().reshape(-1).tolist()
        if not mine:
            raise LossError(f"{where}: the loss of another rank is not finite; its message says where its batch is")
        loss, batch = step[mine[0]]
        path = folder / NAME.format(rank=rank)
        save_batch(path, batch)
        numbers = batch.records.get("seq_index") if batch.records else None
        which = "" if numbers is None else f" (sequences {', '.join(map(str, numbers[:20].tolist()))})"
        raise LossError(
            f"{where}: the loss is {float(loss)} in micro-batch {mine[0]}{which}. The batch is kept in {path}: "
            "nopad.training.load_batch reads it. Usual causes: a learning rate that is too high, half precision "
            "without loss scaling, a label that makes the loss infinite"
        )


def check_unscaled(trainer: Any, ours: Tensor, taken: Tensor) -> None:
    """Refuse a trainer that changes the loss after `compute_loss`.

    Such a trainer may, for example, divide the loss by the number of micro-steps. `ours` is the loss that
    `compute_loss` returned, and `taken` the loss that the training step returned.

    Raises:
        OptionError: the two losses differ by more than a relative error of 0.001.
    """
    if torch.allclose(taken.double().cpu(), ours.double().cpu(), rtol=1e-3, atol=0, equal_nan=True):
        return
    raise OptionError(
        f"{type(trainer).__name__} changes the loss after compute_loss, from {float(ours):g} to {float(taken):g}: it "
        "divides by the accumulation steps, or by ranks, what is divided by the denominator of the whole step already; "
        "take that out of its training_step, or set loss_is_scaled_for_ga = True"
    )


@contextmanager
def enough_memory(batch: Any) -> Iterator[None]:
    """In a ``with`` block, turn an out-of-memory error into one that lists the options that help.

    If `batch` is not a `PackedBatch`, the error stays as it is.

    Raises:
        DeviceMemoryError: memory ran out while running `batch`.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        known = isinstance(error, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in str(error)
        if not known or not isinstance(batch, PackedBatch):
            raise
        at = batch.layout
        raise DeviceMemoryError(
            f"out of memory with {at.shape[0]} rows of {at.shape[1]} slots, the longest sequence of {at.max_seqlen} "
            "tokens. What helps, the harmless first: fewer rows per micro-step and as many more accumulation steps "
            "(the same step, the same loss); gradient_checkpointing=True; bf16=True; a smaller capacity. The longest "
            "sequence needs a capacity of its length, whatever the rows"
        ) from error


@contextmanager
def enough_room(folder: Path) -> Iterator[None]:
    """In a ``with`` block that saves models and checkpoints in `folder`, turn a failed write into a `StorageError`.

    Safetensors and torch write files by code of their own, whose errors are no `OSError`. An `OSError` that is not
    about the disk, such as a missing permission, stays as it is.

    Raises:
        StorageError: a file could not be written, such as on a full, damaged or read-only disk.
    """
    from safetensors import SafetensorError

    try:
        yield
    except (OSError, SafetensorError, RuntimeError) as error:
        said = str(error).strip().partition("\n")[0]
        if isinstance(error, OSError) and error.errno not in _OF_THE_DISK:
            raise
        if isinstance(error, RuntimeError) and not any(part in said for part in _TORCH_WRITES):
            raise
        raise StorageError(
            f"failed while writing into {folder} ({said}); if the disk is full, free some space, and go on with "
            "--resume: a checkpoint that is not complete is passed over"
        ) from error


_OF_THE_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS)
_TORCH_WRITES = ("inline_container.cc", "PytorchStreamWriter")


def save_batch(path: Path, batch: PackedBatch) -> None:
    """Save a batch as a safetensors file: its tensors, layouts (also of a decoder's targets) and sequence numbers."""
    from safetensors.torch import save_file

    items = {name: batch[name] for name in batch if isinstance(batch[name], Tensor) and name not in MASKS}
    tensors = {f"item.{name}": value.detach().cpu().contiguous() for name, value in items.items()}
    facts: dict[str, Any] = {}
    for mask in MASKS:
        if mask not in batch:
            continue
        at = layout_of(batch[mask])
        tensors |= {f"{mask}.{name}": torch.from_numpy(np.array(getattr(at, name))) for name in ARRAYS}
        for name, numbers in at.records.items():
            if np.asarray(numbers).dtype.kind in "iu":
                tensors[f"record.{mask}.{name}"] = torch.from_numpy(np.array(numbers))
        facts[mask] = {"form": at.form, "shape": at.shape, "crossing": at.crossing, "causal": at.causal}
        facts[mask]["not_per_token"] = sorted(at.not_per_token)
        facts[mask]["row_tokens"] = None if at.row_tokens is None else at.row_tokens.tolist()
    path.parent.mkdir(parents=True, exist_ok=True)
    told = json.dumps(facts)
    read = {name: (str(one.dtype).removeprefix("torch."), one.shape, _bytes(one)) for name, one in tensors.items()}
    save_file(tensors, path, metadata={"nopad": told, "sha256": _digest(told, read)})


def load_batch(path: str | Path) -> PackedBatch:
    """Load a batch that training saved because its loss was not finite; return it with its targets, on the CPU.

    Raises:
        FormatError: the file cannot be read, does not hold such a batch, or is damaged.

    >>> import nopad, pathlib, tempfile
    >>> from nopad.training import load_batch
    >>> from nopad.training.trouble import save_batch
    >>> path = pathlib.Path(tempfile.mkdtemp(), "nopad_batch_0.safetensors")  # training names it in its message
    >>> save_batch(path, nopad.PackedBatch.from_sequences([[7, 8, 9], [5]]))
    >>> load_batch(path).input_ids.tolist()
    [[7, 8, 9, 5]]
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            facts = from_json(metadata["nopad"])
            found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        read = {name: (one.dtype.name, one.shape, one.tobytes()) for name, one in found.items()}
        if metadata["sha256"] != _digest(metadata["nopad"], read):
            raise ValueError("its content is not what was written")
        items = _beginning("item.", found)
        for mask, told in facts.items():
            tokens = None if told["row_tokens"] is None else np.array(told["row_tokens"], np.int64)
            layout = Layout(
                told["form"],
                tuple(told["shape"]),
                **_beginning(f"{mask}.", found),
                crossing=told["crossing"],
                causal=told["causal"],
                records=_beginning(f"record.{mask}.", found),
                row_tokens=tokens,
                not_per_token=frozenset(told.get("not_per_token", ())),
            )
            items[mask] = PackedMask(layout)
        return PackedBatch(items)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, SafetensorError) as error:
        raise FormatError(f"{path} is no batch that nopad kept: {error}") from error


def _bytes(tensor: torch.Tensor) -> bytes:
    return tensor.reshape(-1).view(torch.uint8).numpy().tobytes()


def _digest(told: str, tensors: Mapping[str, tuple[str, Sequence[int], bytes]]) -> str:
    """Return the SHA-256 of a batch's file: of the text `told`, and of each tensor's name, dtype, shape and bytes.

    `told` has the facts about the batch's layouts as JSON. A damaged layout may still be a valid layout of other
    sequences, so a check of its arrays would not find all damage.
    """
    found = hashlib.sha256(told.encode())
    for name, (dtype, shape, content) in sorted(tensors.items()):
        found.update(f"{name} {dtype} {list(shape)} ".encode())
        found.update(content)
    return found.hexdigest()


def _beginning(start: str, found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of `found` whose names begin with `start`; in the result, names are without this beginning."""
    return {name.removeprefix(start): value for name, value in found.items() if name.startswith(start)}
