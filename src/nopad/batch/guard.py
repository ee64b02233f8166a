"""`PackedMask`, the ``attention_mask`` of a packed batch: only nopad's attention understands it.

A model that ignores where sequences end must not return a result. Stock models silently accept arguments that they do
not know. So the mask itself is the guard: any operation on it by which a model would use it as a mask raises an error,
whose message says what to do.
"""

from __future__ import annotations

from typing import Any, NoReturn

from nopad.batch.layout import Layout
from nopad.errors import NotPackSafeError, load_torch

__all__ = ["PackedMask", "is_of_batch", "layout_of", "mark"]

MARK = "nopad_of_batch"


_SAYS = (
    "this batch is packed, and {what} on its attention_mask would let sequences see each other: the model is not "
    "pack-safe. Make it so with nopad.packed(model), or pass **batch.as_flash_kwargs() to a model on flash attention. "
    "With a pack-safe model: move its batches with batch.to(device), compile it with nopad.model.static_inputs, and "
    "let it generate from prompts that are not packed"
)


class PackedMask:
    """The ``attention_mask`` of a packed batch: it holds the batch's layout.

    Any use as an ordinary mask raises NotPackSafeError, except for ``sum()``.

    >>> import numpy as np
    >>> mask = PackedMask(Layout.flat(np.array([2, 1])))
    >>> mask[:, None]
    Traceback (most recent call last):
    nopad.errors.NotPackSafeError: this batch is packed, and indexing on its attention_mask would let ...
    """

    __slots__ = ("__weakref__", "_layout", "_on_device")

    def __init__(self, layout: Layout) -> None:
        object.__setattr__(self, "_layout", layout)
        object.__setattr__(self, "_on_device", {})  # placements by device and backend, see `nopad.batch.device.place`

    def __repr__(self) -> str:
        layout = layout_of(self)
        return f"PackedMask({layout.sequences} sequences in {layout.shape[0]} x {layout.shape[1]})"

    def __getattr__(self, name: str) -> NoReturn:
        raise NotPackSafeError(_SAYS.format(what=f".{name}"))

    def __eq__(self, other: object) -> bool:
        """Return whether `other` is this very mask; objects other than masks and None raise NotPackSafeError."""
        if other is None or isinstance(other, PackedMask):
            return self is other
        raise NotPackSafeError(_SAYS.format(what="comparing"))

    __hash__ = object.__hash__

    def sum(self, *dims: Any, **how: Any) -> Any:
        """Return the number of real tokens as a torch tensor with no dimension; TRL's training loop calls this.

        Raises:
            NotPackSafeError: there are arguments, such as a dimension.
            MissingExtraError: torch is not installed.
        """
        if dims or how:
            raise NotPackSafeError(_SAYS.format(what=".sum of rows"))
        return load_torch("counting the tokens of a mask").tensor(layout_of(self).tokens)

    def __reduce__(self) -> tuple[Any, ...]:
        # Pickling keeps the layout only; each process makes its own placements.
        return PackedMask, (self._layout,)

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> NoReturn:
        raise NotPackSafeError(_SAYS.format(what=getattr(function, "__name__", "an operation")))


def _refuse(name: str) -> Any:
    what = {"__getitem__": "indexing"}.get(name, name.strip("_"))

    def refuse(self: PackedMask, *_: Any) -> NoReturn:
        raise NotPackSafeError(_SAYS.format(what=what))

    return refuse


_TOUCHES = """
    abs add and array bool contains float ge getitem gt index int invert iter le len lt matmul mul neg or pow
    radd rand rmatmul rmul ror rsub rtruediv rxor setitem sub truediv xor
"""
for _name in _TOUCHES.split():
    setattr(PackedMask, f"__{_name}__", _refuse(f"__{_name}__"))


def layout_of(mask: PackedMask) -> Layout:
    """Return the layout that a mask holds; only code that keeps the sequences apart may call this."""
    layout: Layout = object.__getattribute__(mask, "_layout")
    return layout


def mark(tensor: Any) -> None:
    """Set an attribute on a tensor of a packed batch, by which `is_of_batch` recognises it.

    A pack-safe model refuses such a tensor if it comes without the batch's mask.
    """
    setattr(tensor, MARK, True)


def is_of_batch(value: Any) -> bool:
    """Return whether `value` is a tensor that `mark` has marked as one of a packed batch."""
    return getattr(value, MARK, False) is True
