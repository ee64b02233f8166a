"""Correct hyper-parameters for packing, as the field ``packing.correction`` says, with the measured packing factor."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from nopad.errors import OptionError
from nopad.training.loaders import Loaders
from nopad.training.scaling import Scaled, scale_for_packing

__all__ = ["corrected"]


def corrected(made: Loaders, data: Any) -> tuple[Loaders, Scaled | None]:
    """Return a copy of `made` with corrected hyper-parameters, and the correction.

    If ``packing.correction`` is "none", return `made` itself and None. Otherwise, the packing factor is measured on a
    loader of the training data, `data`, with one micro-step per step.

    Raises:
        OptionError: the betas are to be corrected, and the optimiser has none; the packing factor cannot be measured;
            or the number of micro-steps is to be divided, but is 1 already, and the packing factor is above 1.05.
        InputError: the data cannot be read, encoded or packed.
        StorageError: the encoded data cannot be written.
    """
    config, args = made.config, made.args
    how = config.packing.correction
    if how == "none":
        return made, None
    if how == "betas" and config.optimizer is None and not _has_betas(args):
        raise OptionError(
            f"packing.correction is 'betas', and {_optim(args)} has none; choose an Adam, LAMB ([optimizer]), or "
            'packing.correction = "accumulation"'
        )
    single = replace(config, packing=replace(config.packing, accumulation=1))
    loader = made.of(single, args).loader(data, "train")
    try:
        scaled = scale_for_packing(args, loader, how)
    except OptionError as error:
        raise OptionError(f"packing.correction: {error}") from error
    args = scaled.hparams
    packing = replace(config.packing, accumulation=args.gradient_accumulation_steps)
    return made.of(replace(config, packing=packing), args), scaled


def _optim(args: Any) -> str:
    return str(getattr(args.optim, "value", args.optim))


def _has_betas(args: Any) -> bool:
    """Return whether `args` name an Adam or Lion, to which the Trainer gives ``adam_beta1`` and ``adam_beta2``."""
    return any(kind in _optim(args) for kind in ("adam", "lion"))
