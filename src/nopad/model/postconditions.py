"""Checks at the end of a packed call; if one fails, the call raises an error instead of returning a result.

The checks are:

* each counted hook ran once. There are two exceptions: hooks of the encoder must not run if the caller gave the
  encoder's states; the vision tower's hook must run once if the batch has images, and once more if it has videos.
* all layers together attended as often as the configuration says. This is not checked if layers are compiled, and
  LayerDrop may skip layers.
* output tensors have one entry per slot or one per sequence, as the head declares. Scalars and the outputs in `FREE`
  are not checked.

The checks catch models that do not work as nopad assumes, for example with a module that was replaced, a class that
pools by itself, or a layer that bypasses nopad's attention.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from nopad.batch.layout import Layout
from nopad.errors import BatchError, UnsupportedModelError
from nopad.model.calls import Call
from nopad.model.families import Family
from nopad.model.heads import Head
from nopad.model.images import TOWER

__all__ = ["LAYERS", "check_attended", "check_output", "check_ran", "check_static", "mixed"]

WAY_OUT = "run the base model, and pool its states with nopad.model.pooled"
# Outputs that are not checked: they are neither per token nor per sequence (features of images), or empty.
FREE = (
    "loss",
    "attentions",
    "encoder_attentions",
    "decoder_attentions",
    "cross_attentions",
    "past_key_values",
    "image_hidden_states",
    "rope_deltas",
    "router_logits",
    "encoder_router_logits",
    "decoder_router_logits",
)
OF_TOKENS = ("last_hidden_state", "hidden_states", "decoder_hidden_states", "prediction_logits")
OF_SOURCE = ("encoder_last_hidden_state", "encoder_hidden_states")
OF_SEQUENCES = ("pooler_output", "seq_relationship_logits", "sop_logits")
# Outputs of TRL's fused language model head: one per token but the first of a row, masked where nothing is predicted.
OF_PREDICTIONS = ("log_probs", "entropy", "log_sum_sq_probs", "mean_logits", "is_top1", "label_mask")
LAYERS = ("num_hidden_layers", "num_layers", "n_layer", "n_layers")
DECODER_LAYERS = ("num_decoder_layers", "decoder_layers")
DROPPED = ("layerdrop", "encoder_layerdrop", "decoder_layerdrop")


def check_ran(model: Any, call: Call, roles: Iterable[str]) -> None:
    """Check that the hook of each role in `roles` (`Hook.role`) ran exactly once in the packed call `call`.

    There are two exceptions. If the caller gave the encoder's states, hooks of the encoder must not have run. The hook
    of the vision tower must have run as often as `call.towers` says.

    Raises:
        UnsupportedModelError: a hook did not run as often as it should.
    """
    for role in roles:
        idle = role.startswith("encoder") and not call.encodes
        wanted = call.towers if role == TOWER else 0 if idle else 1
        if call.ran[role] != wanted:
            raise UnsupportedModelError(
                f"{role} of {type(model).__name__} was to run {('not at all', 'once', 'twice')[wanted]} and ran "
                f"{call.ran[role]} times, so its result is not what each sequence gets alone. Is a part of the model "
                "compiled or left out? Compile single layers, or the whole model with nopad.model.static_inputs; else "
                + WAY_OUT
            )


def check_attended(model: Any, family: Family, call: Call, modules: Sequence[nn.Module]) -> None:
    """Check that nopad's attention and the mixing modules ran as often as the model's configuration says (`mixed`).

    A mixing module moves information between tokens without nopad's attention (`nopad.model.mixers`). Each run of
    nopad's attention counts once, and so does each run of a mixing module with nopad's hooks. `modules` are the modules
    of the model. If one module of a class has a run that counts, all modules of this class must have one.

    Exceptions:

    * if parts of the model are compiled, nothing is checked;
    * if a model with LayerDrop is trained, only too many runs are an error;
    * if the caller gave the encoder's states, some modules of a class may have no run.

    Raises:
        UnsupportedModelError: the number of runs differs, or a module has no run although another of its class has.
    """
    if call.compiled:
        return  # compiled layers do not report that they attended
    config = model.config
    wanted, times = mixed(config, family, call.target is not None, call.encodes), sum(call.attended.values())
    dropped = model.training and any(getattr(config, name, 0) for name in DROPPED)  # LayerDrop skips layers at random
    if times > wanted or (times < wanted and not dropped):
        raise UnsupportedModelError(
            f"layers of {type(model).__name__} asked nopad {times} times to keep sequences apart, and its "
            f"configuration says {wanted}: what goes around it lets sequences see each other. If layers were taken "
            "out, say so in config.num_hidden_layers; else report this model, please"
        )
    silent = [m for m in modules if type(m) in call.kinds and id(m) not in call.attended]
    if silent and call.encodes and not dropped:
        raise UnsupportedModelError(
            f"{len(silent)} of the {type(silent[0]).__name__} modules of {type(model).__name__} never asked nopad to "
            "keep sequences apart, while others did more than once; report this model, please"
        )


def mixed(config: Any, family: Family, decodes: bool = False, encodes: bool = True) -> int:
    """Return how often attention and mixing modules must run in one packed call of a model, all layers together.

    `decodes` says whether the call has a decoder. `encodes` says whether its encoder runs; False: the caller gave the
    encoder's states.
    """
    if not decodes:
        text = config.get_text_config() if hasattr(config, "get_text_config") else config
        if family.mixes is not None:
            return family.mixes(text)
        return _first(text, LAYERS) * int(getattr(text, "inner_group_num", 1)) * family.attends
    encoder = _first(config, ("encoder_layers", *LAYERS)) if encodes else 0
    return encoder + 2 * _first(config, (*DECODER_LAYERS, *LAYERS))  # decoder layers also attend to the encoder


def _first(config: Any, names: Sequence[str]) -> int:
    return next((int(getattr(config, name)) for name in names if getattr(config, name, None) is not None), 0)


def check_output(model: Any, head: Head, call: Call, output: Any) -> None:
    """Check that each output tensor has one entry per slot, or one per sequence, as the head declares (`declared`).

    `output` is what the model returned in the packed call `call`. Scalars and the outputs in `FREE` are not checked.
    Outputs in `OF_PREDICTIONS` of a causal language model may have one slot less per row.

    Raises:
        UnsupportedModelError: an output has another shape.
        BatchError: nopad does not know the model's class, an output per slot has two dimensions, and the rows are as
            wide as the model's states or logits. A result per row ``[R, size]`` would have the same shape.
    """
    at, source = call.side.layout, call.placed.layout
    for name, value in _tensors(output):
        kind = declared(head, name)
        layout = source if name in OF_SOURCE else at
        if kind == "token" and not head.stock and value.dim() == 2 and layout.shape[1] in _widths(model.config):
            raise BatchError(
                f"rows of this batch are {layout.shape[1]} slots wide, as wide as states or classes of this model, so "
                f"{name or 'a result'} per row of a class that nopad does not know could not be told from one per "
                "token; build rows of another width"
            )
        _check(model, name, value, _shapes(head, kind, name, layout, layout.sequences, layout.max_seqlen))


def _widths(config: Any) -> set[Any]:
    """Return the sizes that a result per row ``[R, size]`` may have by the configuration, such as `hidden_size`."""
    return {getattr(config, name, None) for name in ("hidden_size", "num_labels", "vocab_size", "projection_dim")}


def check_static(model: Any, head: Head, most: int | None, shape: tuple[int, int], output: Any) -> None:
    """Check the shapes of outputs, except scalars and those in `FREE`, in a call with static shapes.

    The shape of results per token must begin with `shape`, which is ``(R, L)``. Results per sequence must have `most`
    entries; in question answering, they must begin with ``(most, L)``. If `most` is None, results per sequence are not
    checked. `output` is what the model returned.

    Raises:
        UnsupportedModelError: an output has another shape.
    """
    for name, value in _tensors(output):
        kind = declared(head, name)
        if kind == "token":
            _check(model, name, value, [shape])
        elif most is not None:
            _check(model, name, value, [(most, shape[1])] if head.name == "answers" else [(most,)])


def declared(head: Head, name: str) -> str:
    """Return whether the output called `name` has one entry per "token" or per "sequence"."""
    if name in OF_TOKENS or name in OF_SOURCE:
        return "token"
    return "sequence" if name in OF_SEQUENCES else head.gives


def _shapes(head: Head, kind: str, name: str, at: Layout, sequences: int, longest: int) -> list[tuple[int, ...]]:
    if name == "":  # an entry of a tuple, or a tensor, has no name that says what it is
        return [at.shape, (sequences,)] if kind == "token" else [(sequences,)]
    if kind == "token":
        fewer = head.name == "causal" and name in OF_PREDICTIONS
        return [at.shape, (at.shape[0], at.shape[1] - 1)] if fewer else [at.shape]
    return [(sequences, longest)] if head.name == "answers" and name.endswith("_logits") else [(sequences,)]


def _check(model: Any, name: str, value: Tensor, shapes: list[tuple[int, ...]]) -> None:
    """Check that the shape of the output `value`, called `name`, begins with one of `shapes`.

    If the first of `shapes` has one number, the number of sequences, the tensor must have at most two dimensions. A
    third dimension would mean results per token.

    Raises:
        UnsupportedModelError: the tensor has another shape.
    """
    fits = any(tuple(value.shape[: len(shape)]) == shape for shape in shapes)
    if fits and (len(shapes[0]) > 1 or value.dim() <= 2):
        return
    wanted = " or ".join(f"[{', '.join(map(str, shape))}, ...]" for shape in shapes)
    raise UnsupportedModelError(
        f"{name or 'the result'} of {type(model).__name__} has the shape {list(value.shape)} and not {wanted}: its "
        f"results are of rows or of something else, not what each sequence gets alone; {WAY_OUT}"
    )


def _tensors(output: Any) -> Iterator[tuple[str, Tensor]]:
    """Yield (name, tensor) for each tensor in a model's output, without scalars and the outputs in `FREE`.

    The name is the key in the output. Tensors in a tuple or list under one key all get this key. If the output itself
    is a tuple, a list or a tensor, the name is "".
    """
    named = output.items() if isinstance(output, Mapping) else [("", output)]
    for name, value in named:
        if name in FREE:
            continue
        for one in value if isinstance(value, tuple | list) else [value]:
            if isinstance(one, Tensor) and one.dim() > 0:
                yield name, one
