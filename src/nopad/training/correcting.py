"""Correct hyper-parameters for packing, as the field ``packing.correction`` says, with the measured packing factor."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from nopad.errors import OptionError
from nopad.training.loaders import Loaders
from nopad.training.memory import given_to
from nopad.training.scaling import Scaled, scale_for_packing

__all__ = ["corrected"]

# Optimisers (``trainer.optim``) to which the Trainer gives adam_beta1 and adam_beta2 for all parameters. GaLore and
# GrokAdamW keep betas of their own, and so does APOLLO for what it does not project.
_WITH_BETAS = frozenset(
    {
        "adamw_torch",
        "adamw_torch_fused",
        "adamw_torch_xla",
        "adamw_torch_npu_fused",
        "adamw_torch_4bit",
        "adamw_torch_8bit",
        "adamw_anyprecision",
        "adamw_bnb_8bit",
        "adamw_8bit",
        "paged_adamw_32bit",
        "paged_adamw_8bit",
        "stable_adamw",
        "ademamix",
        "ademamix_8bit",
        "paged_ademamix_32bit",
        "paged_ademamix_8bit",
        "lion_8bit",
        "lion_32bit",
        "paged_lion_32bit",
        "paged_lion_8bit",
        "schedule_free_radam",
        "schedule_free_adamw",
    }
)


def corrected(made: Loaders, data: Any) -> tuple[Loaders, Scaled | None]:
    """Return a copy of `made` with corrected hyper-parameters, and the correction.

    If ``packing.correction`` is "none", return `made` itself and None. Otherwise, the packing factor is measured on a
    loader of the training data, `data`, with one micro-step per step.

    Raises:
        OptionError: the betas are to be corrected, and the Trainer does not give them to the optimiser; the packing
            factor cannot be measured; or the number of micro-steps is to be divided, but is 1 already, and the packing
            factor is above 1.05.
        InputError: the data cannot be read, encoded or packed.
        StorageError: the encoded data cannot be written.
    """
    config, args = made.config, made.args
    how = config.packing.correction
    if how == "none":
        return made, None
    if how == "betas" and config.optimizer is None:
        _check_betas(args)
    single = replace(config, packing=replace(config.packing, accumulation=1))
    loader = made.of(single, args).loader(data, "train")
    try:
        scaled = scale_for_packing(args, loader, how)
    except OptionError as error:
        raise OptionError(f"packing.correction: {error}") from error
    args = scaled.hparams
    packing = replace(config.packing, accumulation=args.gradient_accumulation_steps)
    return made.of(replace(config, packing=packing), args), scaled


def _check_betas(args: Any) -> None:
    """Check that the optimiser in ``args.optim`` gets its betas from ``adam_beta1`` and ``adam_beta2``.

    Raises:
        OptionError: the Trainer does not give this optimiser these betas, or not for all parameters; or the optimiser
            is an AdEMAMix, and ``optim_args`` has ``beta1`` or ``beta2``.
    """
    name = str(getattr(args.optim, "value", args.optim))
    if name not in _WITH_BETAS:
        raise OptionError(
            f"packing.correction is 'betas', and trainer.optim {name!r} does not get adam_beta1 and adam_beta2 for all "
            "parameters; choose adamw_torch or another Adam that does, LAMB ([optimizer]), or packing.correction = "
            '"accumulation"'
        )
    own = [key for key in ("beta1", "beta2") if "ademamix" in name and key in given_to(args)]
    if own:
        raise OptionError(
            f"packing.correction is 'betas', and trainer.optim_args has {own[0]}, which is not corrected; give "
            f"trainer.adam_{own[0]} instead"
        )
