"""`lowered`: a copy of a model for inference in bfloat16 or int8, faster on hardware with instructions for these types.

In int8, linear layers multiply 8-bit weights, one scale per output, by 8-bit activations, one scale per token
(`nopad.model.int8`). PyTorch's own dynamic quantisation has one scale per batch instead, so a sequence's result depends
on the other sequences of its batch. Packed calls of models that are quantised in that way are refused.
"""

from __future__ import annotations

import copy
import logging
from typing import Any, Literal

import torch

from nopad.errors import OptionError
from nopad.model.bfloat16 import fused
from nopad.model.int8 import gain_of_int8, in_int8
from nopad.model.modes import evaluated
from nopad.model.safety import is_packed
from nopad.options import check_choice

__all__ = ["Precision", "agreement", "lowered"]

Precision = Literal["bfloat16", "int8"]
log = logging.getLogger("nopad")


def lowered(model: Any, precision: Precision) -> Any:
    """Return a copy of a float32 model that computes in lower precision, for inference.

    "bfloat16": weights and activations have 8 significant bits. This is fast on CPUs with AMX or AVX-512 BF16, and on
    GPUs. For a model on a CPU without these instructions, a warning is logged. On a CPU with them, linear layers are
    fastest inside ``with nopad.model.fast_linear(copy)``. In this block they keep their weights in the order in which
    the CPU multiplies them, so do not change weights there. Outside of it they keep nothing, so any change of the
    weights counts at once, also one through ``.data``. `Embedder`, `Predictor` and `PackRunner` use such a block.

    "int8": only linear layers compute in 8 bits, the rest stays in float32. This is for CPUs only, and fast with VNNI
    or AMX. On other CPUs, the same integers are multiplied in float32, with the same results to the last bit. If a
    measurement shows that int8 is no faster than float32 on this CPU, a warning is logged.

    Make the copy pack-safe, not the original.

    With "int8", each token has its own scale, so a sequence's result does not depend on the rest of its batch. With
    "bfloat16", a sequence's result alone and its result in a batch differ by rounding errors. These errors are larger
    than in float32. They come from kernels that add up in another order for another number of tokens.

    Raises:
        OptionError: one of these:

            * the precision is unknown
            * the model is already pack-safe, or neither is nor holds a transformers model
            * a parameter of the model is not in float32 ("bfloat16" also accepts float64)
            * for "int8": the model has no layer of the class `torch.nn.Linear` itself, or a parameter is not on a CPU
        UnsupportedModelError: "int8" is asked for, and PyTorch does not multiply 8-bit integers exactly on this CPU. Or
            PEFT adds tokens to the model's input (prompt or prefix tuning).

    >>> from transformers import BertConfig, BertModel
    >>> from nopad.model import lowered
    >>> sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    >>> lowered(BertModel(BertConfig(**sizes)), "bfloat16").dtype
    torch.bfloat16
    """
    check_choice("precision", precision, Precision)
    _check(model, (torch.float32, torch.float64) if precision == "bfloat16" else (torch.float32,))
    if precision == "bfloat16":
        if next(model.parameters()).device.type == "cpu" and not _multiplies_bfloat16():
            log.warning("this CPU has no instructions for bfloat16 (AMX, AVX-512 BF16): it may be slower than float32")
        low = copy.deepcopy(model).to(torch.bfloat16)
        return fused(low) if next(low.parameters()).device.type == "cpu" and _multiplies_bfloat16() else low
    if {parameter.device.type for parameter in model.parameters()} != {"cpu"}:
        raise OptionError("int8 is for CPUs, and this model is on another device; take bfloat16 there")
    if not any(type(module) is torch.nn.Linear for module in model.modules()):
        raise OptionError(f"{type(model).__name__} has no linear layer, so there is nothing to compute in int8")
    if (gain := gain_of_int8()) <= 1:
        log.warning(
            f"int8 is no faster than float32 on this CPU (with VNNI or AMX it would be): a linear "
            f"layer runs at {gain:.2f} of its speed in float32; take float32 unless you want int8's numbers"
        )
    return in_int8(copy.deepcopy(model))


def agreement(model: Any, other: Any) -> float:
    """Return the cosine similarity of the outputs of two models: 1 if the outputs are equal up to a positive factor.

    Both models run on the same four sequences of 32 random tokens, in evaluation mode. The first output of each model
    (hidden states or logits) counts. For each sequence, one cosine is computed over all its values. The smallest of the
    four is returned. The result is NaN if a model raises an exception when it gets ``input_ids`` only.

    >>> from transformers import BertConfig, BertModel
    >>> from nopad.model.precision import agreement, lowered
    >>> sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    >>> model = BertModel(BertConfig(**sizes)).eval()
    >>> 0.99 < agreement(model, lowered(model, "bfloat16")) < 1
    True
    """
    found = []
    for one in (model, other):
        try:
            words = model.config.get_text_config().vocab_size
            tokens = torch.randint(words, (4, 32), generator=torch.Generator().manual_seed(0))
            with evaluated(one), torch.inference_mode():
                made = one(input_ids=tokens.to(one.device))[0]
            found.append(made.double().reshape(4, -1))
        except Exception:  # a decoder that wants its own ids, an image model, a model of other code
            return float("nan")
    return float(torch.nn.functional.cosine_similarity(*found).min())


def _check(model: Any, wide: tuple[torch.dtype, ...]) -> None:
    if is_packed(model):
        raise OptionError("the model is pack-safe already; lower its precision first, and make the result pack-safe")
    other = {parameter.dtype for parameter in model.parameters()}.difference(wide)
    if other:
        raise OptionError(f"the model has parameters in {other.pop()}; load it in float32 to lower its precision")


def _multiplies_bfloat16() -> bool:
    """Return whether this CPU has instructions that multiply bfloat16 matrices: AMX or AVX-512 BF16."""
    amx: Any = getattr(torch.cpu, "_is_amx_tile_supported", bool)
    avx: Any = getattr(torch.cpu, "_is_avx512_bf16_supported", bool)
    return bool(amx() or avx())
