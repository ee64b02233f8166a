"""Outputs of mixtures of experts: the logits of their routers, and the loss that balances their experts.

In a packed call a model gets a mask of real tokens. With this mask, transformers' own causal language models leave
padding out of the loss that balances experts. But the router logits in their output are those of all slots, padding
included. `of_real_tokens` keeps those of real tokens only. So whatever is counted from the logits is the same in rows,
in a flat batch, and in a padded batch without its padding.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from nopad.batch.device import Placement
from nopad.errors import BatchError, UnsupportedModelError
from nopad.model.known import class_of
from nopad.model.wrapper_parts import leaves_of

__all__ = ["ASKED", "check_losses", "of_real_tokens", "refuse_static_routers", "routes"]

LOGITS = "router_logits"
ASKED = "output_router_logits"


def routes(config: Any) -> bool:
    """Return whether a model's configuration asks for the logits of routers in each call (`output_router_logits`)."""
    return any(bool(getattr(one, ASKED, False)) for one in (config, config.get_text_config()))


def refuse_static_routers(model: Any, named: Mapping[str, Any]) -> None:
    """Refuse a call with static shapes that asks for the logits of routers.

    Raises:
        BatchError: the argument `output_router_logits` is true; or it is not given, and the configuration's value is
            true.
    """
    asked = named.get(ASKED)
    if asked or (asked is None and routes(model.config)):
        raise BatchError(
            f"{ASKED} was asked for in a call of static shapes: logits of real tokens have no static shape, and the "
            "loss that balances experts would weigh each token by the number of its sequence, which is in the mask "
            f"there; call model(**batch), or set model.config.{ASKED} = False"
        )


def of_real_tokens(model: Any, at: Placement, output: Any) -> Any:
    """Return the output with router logits of real tokens only, ``[T, experts]`` per layer.

    `at` is the batch's layout, and `output` is changed in place. The model's own logits are those of all slots:
    ``[R * L, experts]`` or ``[R, L, experts]``. A layer without a router may have None. In the result, the logits of
    the T real tokens come sequence after sequence, in the order in which the sequences were given. A padded batch of
    the same sequences, without its padding, has this order too. An output without router logits is returned unchanged.

    Raises:
        UnsupportedModelError: the model's router logits have another shape.
    """
    given = output.get(LOGITS) if isinstance(output, Mapping) else None
    if given is None:
        return output
    if isinstance(given, tuple | list):
        output[LOGITS] = tuple(None if layer is None else _real(model, at, layer) for layer in given)
    else:
        output[LOGITS] = _real(model, at, given)
    return output


def _real(model: Any, at: Placement, layer: Any) -> Tensor:
    shape, slots = tuple(getattr(layer, "shape", ())), at.layout.slots
    if len(shape) > 2 and shape[:2] == at.layout.shape:
        layer = layer.reshape(slots, *shape[2:])
    elif len(shape) < 2 or shape[0] != slots:
        raise UnsupportedModelError(
            f"{LOGITS} of {type(model).__name__} have the shape {list(shape)} and not [{slots}, experts], one row per "
            f"slot of the batch, so nopad cannot tell which are of padding; call it with {ASKED}=False"
        )
    return at.given(layer)


def check_losses(model: Any, at: Placement, labelled: bool, output: Any) -> None:
    """Refuse a batch with padding if a class of the user's own returns a number of the whole batch, such as a loss.

    A loss that is computed from labels is not refused: it is proven. transformers' own classes use the mask to leave
    padding out of such a number. What another forward method does is not known. `at` is the batch's layout, `labelled`
    says whether labels were given, and `output` is what the model returned.

    Raises:
        BatchError: the batch has padding, the forward method is not transformers' own, and the output has a
            floating-point scalar. With labels, one scalar is allowed, and of several the one called `loss` (in a tuple:
            the first entry).
    """
    kind: Any = class_of(model)
    if at.layout.slots == at.layout.tokens or kind.forward.__module__.startswith("transformers."):
        return
    numbers = [
        name
        for name, value in leaves_of(output)
        if isinstance(value, Tensor)
        and not value.dim()
        and value.is_floating_point()
        and type(value) is not nn.Parameter
    ]
    if labelled and len(numbers) == 1:  # the loss, wherever the output has it
        return
    for name in numbers:
        if not (labelled and name in ("loss", "output 0")):
            way = f", or call the model with {ASKED}=False" if name.endswith("loss") else ""
            raise BatchError(
                f"{name} of {kind.__name__}, a class that nopad does not know, is of the whole batch, and this batch "
                f"has {at.layout.slots - at.layout.tokens} slots of padding, which may count in it; build the batch "
                f"with nopad.Flat(), which has none{way}"
            )
