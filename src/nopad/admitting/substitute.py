"""`Substitute`: a small copy of a wrapper, with the interface of a transformers model, for a proof.

A wrapper is the user's own module around one transformers model, its base. The wrapper's own modules are copied with
their sizes, since nothing says how to make them smaller. Its base is replaced by a small one of the same class and
width, with few layers of each kind. If the wrapper does not run with that, these are tried in turn: a small base with
all layers, one with few layers of the original sizes, and a copy of the base.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from nopad.admitting.narrowing import SIZES, WIDTHS
from nopad.admitting.small import own_parts, ran, shake, short_model
from nopad.batch.guard import PackedMask
from nopad.errors import UnsupportedModelError
from nopad.model.own import foreign
from nopad.model.wrapper_parts import PLAIN, accepted, bases_of, leaves_of, outer_modules

__all__ = ["NAME", "Substitute", "substitute"]

NAME = "wrapped"  # name of the wrapper as a module of its substitute
MOST_PARAMETERS = 60_000_000  # of a copy
ALL = "a base of all layers"
FEWEST = 3  # layers of a small base, so that four states can be read
# Sizes of a base that are not seen from outside of it.
INSIDE = (
    *("intermediate_size", "ffn_hidden_size", "dff", "n_inner", "ffn_dim", "d_ff", "hidden_dim"),
    *("moe_intermediate_size", "shared_expert_intermediate_size", "shared_intermediate_size"),
    *("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"),
    *("num_experts_per_tok", "num_experts_per_token", "moe_k", "top_k_experts", "moe_topk"),
    *("n_group", "topk_group", "num_expert_group", "n_shared_experts", "moe_layer_start_index"),
)


class Substitute(nn.Module):
    """A small copy of a wrapper that an audit can run like a transformers model.

    It has the base's configuration as `config`, takes keyword arguments, and returns a dict of tensors by name.
    """

    def __init__(self, wrapper: nn.Module) -> None:
        super().__init__()
        self.wrapped = wrapper
        self.config = copy.deepcopy(self.base.config)  # an audit changes it, by which tuples would become mappings

    @classmethod
    def of(cls, wrapper: nn.Module) -> Substitute:
        """Return the substitute of `wrapper`, as an instance of a new class with the same name as the wrapper's."""
        kind = type(type(wrapper).__name__, (cls,), {"__module__": __name__})
        made: Substitute = kind(wrapper)
        return made

    @property
    def base(self) -> Any:
        """The transformers model inside."""
        return next(iter(bases_of(self.wrapped).values()))

    def get_input_embeddings(self) -> Any:
        """Return the base's module of input embeddings, as `PreTrainedModel.get_input_embeddings` does."""
        return self.base.get_input_embeddings()

    def set_experts_implementation(self, name: str) -> None:
        """Set how the base runs its experts, as `PreTrainedModel.set_experts_implementation` does."""
        self.base.set_experts_implementation(name)

    def forward(self, **given: Any) -> dict[str, Tensor]:
        """Call the wrapper, and return the tensors of its output by name, converted to floats if they are not.

        The argument `use_cache` is dropped. If the mask is that of a packed batch, the wrapper gets it and all other
        arguments as they are. Otherwise a mask of ones is added if `input_ids` come without a mask. Then the wrapper
        gets only those arguments that it takes and that are not None.

        Raises:
            UnsupportedModelError: the output holds an object in which nopad cannot look.
        """
        takes = accepted(self.wrapped, self.base)
        given.pop("use_cache", None)  # its configuration says no
        if not isinstance(given.get("attention_mask"), PackedMask):
            mask = torch.ones_like(given["input_ids"]) if "input_ids" in given else None
            given = {"attention_mask": mask, **given}
            given = {name: value for name, value in given.items() if name in takes and value is not None}
        return dict(self._tensors(self.wrapped(**given)))

    def _tensors(self, output: Any) -> Iterator[tuple[str, Tensor]]:
        for name, value in leaves_of(output):
            if isinstance(value, Tensor):
                yield name, value if value.is_floating_point() else value.to(torch.get_default_dtype())
            elif not isinstance(value, PLAIN):
                raise UnsupportedModelError(
                    f"{name} of {type(self).__name__} is a {type(value).__name__}, in which nopad cannot look; return "
                    "tensors, in a tuple, a dict or a ModelOutput of transformers"
                )


def substitute(wrapper: nn.Module, base: Any, every: bool = False) -> tuple[Substitute, str]:
    """Return a small copy of a wrapper, in float32 and evaluation mode, and words on how it was made.

    With `every`, a copy with all layers of its base is tried first.

    Raises:
        UnsupportedModelError: no copy with at most 60 million parameters can be built and run; the wrapper cannot be
            copied, or has no weights (the device "meta"); or its output holds an object in which nopad cannot look.
    """
    name, reasons = type(wrapper).__name__, []
    if any(parameter.is_meta for parameter in wrapper.parameters()):
        raise UnsupportedModelError(f"{name} has no weights to be tried (it is on the device 'meta')")
    for how, make in sorted(_bases(wrapper, base), key=lambda one: every and one[0] != ALL):
        try:
            made = Substitute.of(_copied(wrapper, base, make()))
            if _number(made) > MOST_PARAMETERS:
                reasons.append(f"{how}: {_number(made):,} parameters, which are too many to try")
                continue
            ran(copy.deepcopy(made), list(range(5, 12)))  # it may change with what it is called with
        except UnsupportedModelError:
            raise
        except Exception as error:  # a size may be one that the wrapper's code does not allow
            said = (str(error).strip().splitlines() or ["no message"])[0]
            reasons.append(f"{how}: {type(error).__name__}: {said}")
            continue
        return made, f"{how}, {_number(made)} parameters"
    said = reasons[0] if reasons else f"it has {_number(wrapper):,} parameters, and holds parts of the model inside"
    raise UnsupportedModelError(
        f"{name} is not proven: no copy of it could be built and run on input_ids and attention_mask ({said})"
    )


def _bases(wrapper: nn.Module, base: Any) -> Iterator[tuple[str, Any]]:
    """Yield, as (description, function), ways to make the base of a copy, the smallest first.

    The function returns a new base, or None if the copy is to have a copy of the whole base. This last way is left out
    if the wrapper has more than 60 million parameters. It is the only one if the wrapper holds a part of the base by
    itself, or if the base has classes of the user's own or was changed after it was built.
    """
    mine = set(base.modules())
    # A part of the base that the wrapper holds by itself would not be that of another base.
    shared = any(
        child in mine and child is not base for one in outer_modules(wrapper).values() for child in one.children()
    )
    if not shared and not foreign(base) and not own_parts(base):
        config = base.config
        heads = {
            one: WIDTHS[one] for one in ("num_attention_heads", "num_key_value_heads") if hasattr(config, "head_dim")
        }
        inside = {**SIZES, **{one: WIDTHS[one] for one in INSIDE}}

        def made(sizes: dict[str, int], every: bool = False) -> Callable[[], Any]:
            def make() -> Any:
                small = short_model(config, type(base), sizes, every=every, fewest=FEWEST, most=MOST_PARAMETERS)
                for name, module in small.named_modules():
                    for key in [key for key in module._modules if _lacks(base, name, key)]:
                        module._modules[key] = None  # such as a pooler, which a base may be built without
                return small

            return make

        yield "a base of few layers", made({**inside, **heads})
        yield ALL, made({**inside, **heads}, every=True)
        yield "a base of few layers, with its vocabulary", made({"vocab_size": config.get_text_config().vocab_size})
    if _number(wrapper) <= MOST_PARAMETERS:
        yield "a copy of it all", lambda: None


def _lacks(base: nn.Module, name: str, key: str) -> bool:
    """Return whether the base lacks a submodule: its module called `name` has None as its submodule `key`.

    A base may be built without some modules, such as a pooler.
    """
    there = dict(base.named_modules()).get(name)
    return there is not None and key in there._modules and there._modules[key] is None


def _copied(wrapper: nn.Module, base: Any, small: Any) -> nn.Module:
    """Return a copy of a wrapper with the model `small` in place of its base; `small` None: with a copy of the base.

    The copy is on the CPU, in float32 and evaluation mode. Noise is added to the weights that are copied, and to
    floating-point buffers of the wrapper's own modules, so that none is 0.

    Raises:
        UnsupportedModelError: the wrapper cannot be copied.
    """
    memo: dict[int, Any] = {}
    if small is not None:
        for mine, theirs in (
            (base.named_modules, small.named_modules),
            (base.named_parameters, small.named_parameters),
        ):
            others: dict[str, Any] = dict(theirs(remove_duplicate=False))
            memo |= {id(one): others[name] for name, one in mine(remove_duplicate=False) if name in others}
        memo[id(base.config)] = small.config
    try:
        made = copy.deepcopy(wrapper, memo)
    except Exception as error:  # a module may hold anything
        raise UnsupportedModelError(
            f"{type(wrapper).__name__} cannot be copied ({type(error).__name__}: {error}), and a proof is of a copy"
        ) from error
    made = made.cpu().float().eval().requires_grad_(True)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for module in outer_modules(made).values():
            shake(module.parameters(recurse=False))
            shake(one for one in module._buffers.values() if one is not None and one.is_floating_point())
        if small is None:
            shake(next(iter(bases_of(made).values())).parameters())
    config = next(iter(bases_of(made).values())).config
    if getattr(config, "use_cache", None) is not None:
        config.use_cache = False
    return made


def _number(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())
