"""The parts of a wrapper: which modules and models it holds, which arguments it takes, and what its outputs hold.

A wrapper is the user's own module (`nn.Module`) around one transformers model, its base. Before a wrapper runs on
packs, `nopad.admitting.wrapping` proves that it may; `Admitted` holds what this proof found.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from nopad.errors import BatchError, OptionError
from nopad.model.calls import parameters, takes_more
from nopad.model.known import class_of

__all__ = [
    "COLUMNS",
    "PLAIN",
    "Admitted",
    "accepted",
    "bases_of",
    "check_proven",
    "label_names",
    "leaves_of",
    "outer_modules",
    "wraps",
]

COLUMNS = ("input_ids", "attention_mask", "token_type_ids", "position_ids")  # with which a wrapper is proven
NO_WRAPPERS = ("torch", "transformers", "peft", "accelerate", "deepspeed", "sentence_transformers", "nopad")
PLAIN = (bool, int, float, complex, str, bytes, type(None))


@dataclass(frozen=True)
class Admitted:
    """What a proof found of the user's own class: which arguments a packed call may have, and what it returns.

    The class is that of a wrapper, or of a transformers model.

    Attributes:
        columns: which columns of a batch it takes, out of "input_ids", "attention_mask", "token_type_ids" and
            "position_ids".
        labels: how it computes its loss. "tokens": mean cross entropy of one label per token; "causal": the same, with
            labels that it shifts by one token; "classification": from one label per sequence (of a wrapper: mean cross
            entropy); "answers": from `start_positions` and `end_positions`; None: a call with labels is refused.
        why: the reason why calls with labels are refused; "": they are not.
        sequences: whether some outputs of a wrapper have one entry per sequence.
    """

    columns: tuple[str, ...] = COLUMNS[:2]
    labels: str | None = None
    why: str = ""
    sequences: bool = False


def wraps(model: Any) -> bool:
    """Return whether `model` is the user's own module around a transformers model, and not such a model itself.

    >>> from torch import nn
    >>> from nopad.model.wrapper_parts import wraps
    >>> wraps(nn.Linear(2, 2))  # holds no transformers model
    False
    """
    from transformers import PreTrainedModel

    if not isinstance(model, nn.Module) or isinstance(model, PreTrainedModel):
        return False
    return class_of(model).__module__.partition(".")[0] not in NO_WRAPPERS and bool(bases_of(model))


def bases_of(model: nn.Module) -> dict[str, Any]:
    """Return the outermost transformers models inside a module, each once, as ``{name in the module: model}``.

    If `model` itself is a transformers model, it is the only one, under the name "".
    """
    from transformers import PreTrainedModel

    found = [(name, module) for name, module in _outer(model) if isinstance(module, PreTrainedModel)]
    inside = {part for _, base in found for part in base.modules() if part is not base}
    return {name: base for name, base in found if base not in inside}


def outer_modules(model: nn.Module) -> dict[str, nn.Module]:
    """Return the modules of a wrapper outside of its base (the transformers model in it), as ``{name: module}``.

    The wrapper itself has the name "".
    """
    from transformers import PreTrainedModel

    return {name: module for name, module in _outer(model) if not isinstance(module, PreTrainedModel)}


def _outer(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield (name, module) for a module (name "") and all modules inside it, each once.

    Transformers models are yielded, but not the modules inside them.
    """
    from transformers import PreTrainedModel

    seen, waiting = set[nn.Module](), [("", model)]
    while waiting:
        name, module = waiting.pop(0)
        if module in seen:
            continue
        seen.add(module)
        yield name, module
        if not isinstance(module, PreTrainedModel):
            waiting += [
                (f"{name}.{key}" if name else key, one) for key, one in module._modules.items() if one is not None
            ]


def leaves_of(output: Any) -> Iterator[tuple[str, Any]]:
    """Yield (name, value) for each value in an output, and in the mappings, tuples and lists inside it, at any depth.

    The mappings, tuples and lists are not yielded themselves. A name is the keys and indices that lead to the value,
    such as "logits", or "output 0" for the first entry of a tuple. The name of an output that is a single tensor is
    "output 0" too.
    """
    if isinstance(output, Mapping):
        yield from _inside("", output)
    else:
        yield from _inside("output", output if isinstance(output, tuple | list) else [output])


def _inside(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if not isinstance(value, Mapping | tuple | list):
        yield name, value
        return
    for key, one in value.items() if isinstance(value, Mapping) else enumerate(value):
        yield from _inside(f"{name} {key}".lstrip(), one)


def accepted(model: nn.Module, base: nn.Module) -> tuple[str, ...]:
    """Return the names of the arguments that the forward method of the wrapper `model` takes.

    If this method has ``**kwargs``, the arguments that the forward method of `base` (the transformers model inside)
    takes follow.

    Raises:
        OptionError: ``input_ids`` is not among these names.
    """
    forward = type(model).forward
    found = parameters(forward)
    if takes_more(forward):
        found = tuple(dict.fromkeys((*found, *parameters(type(base).forward))))
    if "input_ids" not in found:
        raise OptionError(
            f"the forward method of {type(model).__name__} takes no input_ids, by which a batch is given "
            f"(it takes {', '.join(found) or 'nothing by name'}); name its arguments as transformers does: input_ids, "
            "attention_mask"
        )
    return found


def label_names(head: str | None) -> tuple[str, ...]:
    """Return the names of the arguments that hold labels, for a kind of head, such as "tokens" or "answers"."""
    return ("start_positions", "end_positions") if head == "answers" else ("labels",)


def check_proven(model: nn.Module, admitted: Admitted, named: Mapping[str, Any], more: tuple[str, ...] = ()) -> None:
    """Check that all arguments of a packed call, `named`, were part of a proof of the model or wrapper `model`.

    `admitted` is what the proof found. Arguments that are None, or have their default value, and those in `more` are
    allowed.

    Raises:
        BatchError: an argument was not part of the proof.
    """
    name, covered = type(model).__name__, (*admitted.columns, "attention_mask", *more)
    for key, value in named.items():
        if value is None or key in covered:
            continue
        if admitted.labels is None and key in ("labels", *label_names("answers")):
            raise BatchError(
                f"{key} were given, and the proof of {name} was without them: {admitted.why}. Take them out, "
                f"{key} = batch.pop({key!r}), and compute the loss from outputs, such as by nopad.losses.token_loss"
            )
        if key not in label_names(admitted.labels) and not _is_default(model, key, value):
            raise BatchError(
                f"{key} was given, and the proof of {name} was without it, so what it changes is not known; leave it "
                "out, or set it in the class; if it holds labels, name it labels"
            )


def _is_default(model: nn.Module, key: str, value: Any) -> bool:
    usual = inspect.signature(type(model).forward).parameters
    default = usual[key].default if key in usual else inspect.Parameter.empty
    return type(default) is type(value) and isinstance(default, PLAIN) and bool(default == value)
