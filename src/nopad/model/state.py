"""`State`: the hooks and settings of a pack-safe model, with the methods that begin and end each of its calls."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import FrameType
from typing import Any

import torch
from torch import nn

from nopad.batch.device import is_static, place
from nopad.batch.guard import PackedMask, layout_of
from nopad.batch.images import KINDS
from nopad.errors import BatchError, UnsupportedModelError
from nopad.model import attention
from nopad.model.admission import check_call, device_of, leave_columns, refuse_attentions
from nopad.model.arguments import check_labels
from nopad.model.backends import AUTOMATIC
from nopad.model.backends.varlen import HALF, autocast_dtype, on_kernel
from nopad.model.calls import Call, bound, parameters
from nopad.model.fronts import STATES, blank, check_raw
from nopad.model.heads import Head
from nopad.model.hooked import HookedModel, part_of
from nopad.model.images import check_images, ordinary_arguments, refuse_others
from nopad.model.known import class_of
from nopad.model.later import came_before, check_given
from nopad.model.mixers import carry, refuse_compiled
from nopad.model.nested import kept
from nopad.model.own import is_own, is_own_call
from nopad.model.positions import positions
from nopad.model.postconditions import check_attended, check_output, check_ran
from nopad.model.routers import check_losses, of_real_tokens
from nopad.model.static import enter_static, leave_static
from nopad.model.unguarded import refuse_marked, refuse_unguarded
from nopad.model.wrapper_parts import check_proven, label_names

__all__ = ["State"]

log = logging.getLogger("nopad")

TYPES = "token_type_ids"
# Arguments that say what is returned, or how a loss is scaled; of them no token gets another result.
SWITCHES = (
    *("use_cache", "return_dict", "output_hidden_states", "output_attentions", "output_router_logits"),
    *("logits_to_keep", "num_items_in_batch"),
)

LABELS = (*label_names("tokens"), *label_names("answers"))


@dataclass(eq=False)
class State(HookedModel):
    """What makes one model pack-safe. Hooks on the whole model begin each call (`enter`) and end it (`leave`)."""

    def enter(self, module: nn.Module, args: Any, kwargs: dict[str, Any], frame: FrameType | None) -> Any:
        """Begin a call: check that batch and model fit, and turn the batch into the model's own arguments.

        Returns the new ``(args, kwargs)``. The result is None, and the arguments stay as they are, for a call with
        static shapes (`nopad.model.static_inputs`), for an ordinary call (one without a packed batch), and while
        compiling. `frame` is the Python stack frame that calls the module; None while compiling.

        Raises:
            BatchError: the batch does not fit the model, or was given as one argument; or a call with static shapes has
                arguments that do not fit the model. An ordinary call raises this if it asks for attention weights and
                the model uses nopad's attention, which never returns them. It also raises this if it gets tensors of a
                packed batch, unless the model is called inside another pack-safe model.
            UnsupportedModelError: the model cannot run this batch or this call with static shapes; it was changed after
                it was made pack-safe; or there are more positional arguments than the forward method has names for.
        """
        if torch.compiler.is_compiling():
            arguments = bound(module, args, kwargs)
            numbers: Any = arguments.get("attention_mask")
            if is_static(numbers):
                if self.admitted is not None:
                    check_proven(self.model, self.admitted, arguments, SWITCHES)
                enter_static(self.cell, self.head, arguments, None)
            elif not isinstance(numbers, PackedMask):  # a `PackedMask` raises its own error while compiling
                refuse_marked(arguments)
            return None
        self.cell.settle()
        stack = self.cell.calls.begin()
        if args and isinstance(args[0], Mapping):
            raise BatchError("a batch was given as one argument; call model(**batch)")
        named = bound(module, args, kwargs)
        guard: Any = named.get("attention_mask")
        if self.family.route == "interface":
            refuse_attentions(module, named)
        if is_static(guard):
            self.check_proven_arguments(named)
            enter_static(self.cell, self.head, named, frame)
            return None
        if not isinstance(guard, PackedMask):
            if attention.inside() is None:  # otherwise this model is a part of a pack-safe model and gets its tensors
                refuse_unguarded(named)
            return None
        call = self._begun(module, guard, named)
        call.frame = frame
        self.cell.count(1)
        stack[-1] = call
        call.token = attention.begin(call)
        call.given = (module, kept(named)) if came_before(module) else None
        return (), named

    def _begun(self, module: nn.Module, guard: PackedMask, named: dict[str, Any]) -> Call:
        """Return the `Call` for a packed batch, and turn `named` into the model's own arguments, in place.

        `named` holds the items of the batch by name, and `guard` is its `attention_mask`.

        Raises:
            BatchError: the batch does not fit the model.
            UnsupportedModelError: the model cannot run this batch, or was changed after it was made pack-safe.
        """
        now = self.attending.config._attn_implementation
        if self.before and now != attention.NAME:
            raise UnsupportedModelError(
                f"attention of this {type(module).__name__} was set to {now!r} after it "
                "was made pack-safe; make it so anew: nopad.packed(nopad.unpacked(model))"
            )
        self.renew()
        self.check_parts(self.attends)
        self.check_windows()
        self.watch.look(self.modules, self.cell)
        if self.proven is not None:
            self.proven.check([one for one in self.modules if is_own(class_of(one))], self.model.config)
        if self.family.mixers:
            carry(self.cell, self.modules)
        check_raw(module, self.head.base, self.family, named)
        refuse_others(module, self.family, named)
        call = self._opened(guard, named, module)
        takes, layout = ordinary_arguments(self.takes, self.family), call.placed.layout
        check_call(module, self.family, self.most, takes, self.head.stock, named, layout)
        axes = None
        if self.family.images is not None:
            axes = check_images(module, self.head.base, self.family, named, layout)
            call.towers = sum(getattr(layout, kind.name) is not None for kind in KINDS)
        self._fit(named, call, axes)
        check_labels(self.model, self.head.by_token, named)
        self.head.enter(call, named)
        return call

    def leave(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
        """End a packed call: check that hooks and layers ran as they must, and return the new output.

        In the new output, results are per sequence and not per row, and router logits are those of real tokens. A call
        with static shapes is ended by `leave_static`, whose result is returned. For an ordinary call, or a call that
        raised an exception, the output does not change: the result is None or the output itself.

        Raises:
            UnsupportedModelError, BatchError: a check at the end fails (`nopad.model.postconditions`,
                `nopad.model.routers`); a hook that was added later changed the model's arguments; or a compiler traces
                this during a packed call.
        """
        if is_static(bound(module, args, kwargs).get("attention_mask")):
            return leave_static(module, self.cell, self.head, output)
        self.cell.refuse_compiling()
        if torch.compiler.is_compiling():
            return output
        call = self.cell.calls.end()
        if call is None:
            return None
        self.cell.count(-1)
        attention.end(call.token)
        call.frame = None
        if output is None:  # the forward call raised
            return None
        check_given(module, call, kwargs)
        check_ran(module, call, self.roles)
        check_attended(module, self.family, call, self.modules)
        output = self.head.leave(call, output)
        check_output(module, self.head, call, output)
        labelled = any(one is not None for name in LABELS for one in (kwargs.get(name), call.labels.get(name)))
        check_losses(module, call.placed, labelled, output)
        output = of_real_tokens(module, call.placed, output)
        return output.to_tuple() if call.as_tuple and hasattr(output, "to_tuple") else output

    def _opened(self, guard: PackedMask, named: Mapping[str, Any], module: nn.Module) -> Call:
        """Return the `Call` for the batch whose `attention_mask` is `guard`.

        `named` holds the items of the batch by name, and `module` is the model.

        Raises:
            BatchError: the model has a decoder and the batch has no targets, or the batch has targets and the model has
                no decoder; layers are compiled, and a sequence may go on in the next row; or results per row would look
                like results per sequence (`_refuse_ambiguous`).
            UnsupportedModelError: layers are compiled, and this model does not allow that.
        """
        compiled = any(one._compiled_call_impl is not None or "_orig_mod" in one._modules for one in self.modules)
        if compiled:
            refuse_compiled(module, self.family)
        layouts, target = [layout_of(guard)], named.get("decoder_attention_mask")
        decodes = self.family.encoder_decoder and part_of(module, "decoder") is not None
        if decodes and not isinstance(target, PackedMask):
            raise BatchError("this model has a decoder: build the batch with batch.with_decoder(targets, start_id)")
        if isinstance(target, PackedMask):
            if not decodes:
                raise BatchError(
                    f"the batch has targets, and {type(module).__name__} has no decoder; give it batch.sources"
                )
            layouts.append(layout_of(target))
        if compiled and any(layout.crossing for layout in layouts):
            raise BatchError(
                "compiled layers know which slots see each other by sequence numbers alone, and cannot follow a "
                "sequence into the next row; build the batch without end_to_end, or do not compile"
            )
        if not self.head.stock:
            _refuse_ambiguous(self.head, layouts[-1])
        placed = place(guard, device_of(module), self._choice(guard, module, compiled))
        aimed = None
        if isinstance(target, PackedMask):
            aimed = place(target, device_of(module), self._choice(target, module, compiled))
        return Call(self.head, placed, aimed, named.get("encoder_outputs") is None, compiled)

    def _choice(self, guard: PackedMask, module: nn.Module, compiled: bool) -> str:
        """Return the name of the attention backend; "auto" is resolved by the device, the dtype and the batch's layout.

        `guard` is the batch's `attention_mask`, which holds its layout (rows, or one flat stream). `compiled` says
        whether layers are compiled. Each choice for "auto" is logged once.
        """
        if self.backend != "auto":
            return self.backend
        device, layout = device_of(module), layout_of(guard)
        dtype = autocast_dtype(device) or next(module.parameters()).dtype
        own = self.family.route != "interface"
        if compiled and own:
            chosen = "mask"
        elif device.type == "cpu":
            chosen = "segments"
        elif layout.form == "flat" and dtype in HALF and not own and on_kernel(device):
            chosen = AUTOMATIC
        else:
            chosen = "repack" if layout.crossing else "mask"
        _say_once(f"{type(module).__name__} on {device.type}: attention backend {chosen!r} for {layout.form} batches")
        return chosen

    def _types_are_narrow(self, width: int) -> bool:
        """Return whether the model's own zeros for missing token types are too few for rows of `width` slots.

        The zeros are a buffer of the model's embeddings, ``[1, positions]``. ConvBERT's may be too narrow.
        """
        table = getattr(getattr(self.head.base, "embeddings", None), TYPES, None)
        return isinstance(table, torch.Tensor) and table.dim() == 2 and table.shape[1] < width

    def _fit(self, named: dict[str, Any], call: Call, axes: torch.Tensor | None) -> None:
        """Replace the batch's items in `named` by the arguments that the model takes, in place.

        This also sets `call.positions` and `call.as_tuple`. For a model with a front end (`nopad.model.fronts`), the
        batch's states are moved to `call.seen`. `axes` are the positions of a model with three axes of positions,
        ``[3, R, L]``; None: the positions are made from those of the layout.

        Raises:
            BatchError: a column of the batch does not fit the model (`leave_columns`); or an argument was not part of
                the proof of the user's own class.
        """
        takes = self.takes
        placed = call.placed
        if "attention_mask" in takes:
            named["attention_mask"] = (placed.ids != 0).to(torch.long)
        else:
            named.pop("attention_mask")  # FNet has no use for one
        if call.target is not None:
            named["decoder_attention_mask"] = (call.target.ids != 0).to(torch.long)
        named.pop("position_ids", None)  # already checked to be the layout's
        given = placed.positions
        call.positions = positions(self.model, self.family, given, named.get("input_ids"), placed.ids, placed.first)
        if axes is not None:
            call.positions = axes.to(given.device)
        if "position_ids" in takes:
            named["position_ids"] = call.positions
        parts = (self.model, self.attending) if self.head.stock else (self.model,)  # Qwen3-VL hands it on
        if any("use_cache" in parameters(type(part).forward) for part in parts):
            named["use_cache"] = False
        asked = named.get("return_dict")
        call.as_tuple = (self.model.config.return_dict if asked is None else asked) is False
        if asked is not None or (call.as_tuple and (self.head.stock or "return_dict" in takes)):
            named["return_dict"] = True
        leave_columns(self.model, takes, named)
        self.check_proven_arguments(named)
        # A user's own class may take it and not hand it on
        missing = self.head.stock and TYPES in takes and named.get(TYPES) is None
        if missing and self._types_are_narrow(placed.layout.shape[1]):
            named[TYPES] = torch.zeros_like(placed.ids, dtype=torch.long)
        if self.family.front is not None:
            call.seen[STATES] = named.pop(STATES)
            named[self.family.front[1]] = blank(self.model.config, next(self.model.parameters()))

    def check_proven_arguments(self, named: Mapping[str, Any]) -> None:
        """Check that the arguments of a call, `named`, were part of the proof, if the user's own class was proven.

        Raises:
            BatchError: an argument was not part of the proof; or labels are given, and the user has replaced the
                model's `loss_function`, of which there is no proof.
        """
        loss = vars(self.model).get("_loss_function")
        if loss is not None and is_own_call(loss) and named.get("labels") is not None:
            raise BatchError(
                f"labels were given, and loss_function of this {type(self.model).__name__} is your own "
                f"({getattr(loss, '__qualname__', loss)}), of which nopad does not know what it would be on packs. "
                "Take them out, labels = batch.pop('labels'), and compute the loss from outputs, such as by "
                "nopad.losses.token_loss"
            )
        if self.admitted is not None:
            check_proven(self.model, self.admitted, named, SWITCHES)


def _refuse_ambiguous(head: Head, layout: Any) -> None:
    """Refuse a batch with which results per row and results per sequence could not be told apart by their shapes.

    Call this for a model whose class nopad does not know. `layout` is the batch's layout.

    Raises:
        BatchError: the class gives results per sequence, and the batch has as many rows as sequences, but not one
            sequence in each row.
    """
    rows = layout.shape[0]
    alone = layout.depth == 1 and not layout.crossing
    if head.gives == "sequence" and rows == layout.sequences and not alone:
        raise BatchError(
            f"this batch has as many rows as sequences, {rows}, so results per row of a class that nopad does not know "
            "could not be told from results per sequence; build it with nopad.Flat(), or with another number of rows"
        )


@lru_cache(maxsize=64)
def _say_once(message: str) -> None:
    log.info(message)
