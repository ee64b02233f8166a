"""`Traced`: check that a wrapper computes each token's result from that token alone, or name the module that does not.

A wrapper is the user's own module around one transformers model, its base. Only the wrapper's own code is followed: the
base runs once, is recorded, and from then on its recorded output is used in place of a call.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from nopad.admitting.local import Run, backward_of_ones_own, crossing_outputs, first_crossing, varying
from nopad.admitting.probing import length_for
from nopad.admitting.substitute import Substitute
from nopad.errors import UnsupportedModelError
from nopad.model.wrapper_parts import COLUMNS, PLAIN, accepted, leaves_of

__all__ = ["WAY_OUT", "Traced"]

# Numbers of sequences in a row; the first that is no size of a weight is taken
SEQUENCES = (9, 14, 21, 27, 35, 39, 43, 47, 51, 55, 59)
WAY_OUT = (
    "return the states of the model inside and pool them with nopad.model.pooled, or run what mixes tokens on each "
    "sequence's states (batch.unpack_tokens)"
)


@dataclass
class Traced:
    """A recorded call of a wrapper on one sequence, and checks of what the wrapper computes.

    Attributes:
        model: the `Substitute`, a small copy of the wrapper, that was called.
        close: differences of at most this, relative to an output's largest value, are rounding.
        tokens: token ids of the sequence.
        given: the wrapper's arguments, by name.
        output: what the wrapper returned.
        base: what the base returned when it was first called; None: it was not called.
        calls: how often the base was called.
        sequences: whether the wrapper returns a tensor of its own with one entry per sequence; `check` sets it.
    """

    model: Substitute
    close: float
    tokens: list[int]
    given: dict[str, Any]
    output: Any
    base: Any
    calls: int
    sequences: bool = False

    @classmethod
    def of(cls, model: Substitute, close: float, **more: Tensor) -> Traced:
        """Run a substitute's wrapper on one sequence, and record the call.

        The wrapper gets all columns (such as ``input_ids``) that it takes, and the arguments `more`. `close` is as in
        the attributes.
        """
        wrapper, base, length = model.wrapped, model.base, length_for(model)
        size = model.config.get_text_config().vocab_size
        tokens = [(5 + 3 * at) % size for at in range(length)]
        made: list[Any] = []
        # Of a mapping a copy, since the wrapper may add to it.
        handle = base.register_forward_hook(lambda module, args, output: made.append(tree_map(_same, output)))
        given = {name: value for name, value in _columns(tokens).items() if name in accepted(wrapper, base)} | more
        try:
            with torch.no_grad():
                output = wrapper(**given)
        finally:
            handle.remove()
        return cls(model, close, tokens, given, output, made[0] if made else None, len(made))

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns (such as ``input_ids``) that the wrapper takes."""
        return tuple(name for name in COLUMNS if name in self.given)

    def run(self, **more: Any) -> Run:
        """Return the recorded call as a `Run`, in which the base is not run again.

        `more` are arguments, by name, that are added to the recorded ones or replace them.
        """
        base, length = self.model.base, len(self.tokens)
        return Run(self.model.wrapped, {**self.given, **more}, {base: self.base}, length, self.close, tuple(self.given))

    def check(self) -> None:
        """Check that each token's result depends only on that token and on what the base returns for it.

        The base is the model inside. If a tensor has one entry per sequence, the entry may depend only on what the base
        returns for that sequence; the attribute `sequences` then becomes True.

        Raises:
            UnsupportedModelError: a result depends on other tokens (the message names the first module that moves
                information between tokens); the base is not called exactly once, or gets something that was computed
                from several tokens; code may decide by the values of tensors (`Track.reads`), for example by a number
                that ``.item()`` returns; the wrapper's code cannot be followed; or its output holds an object in which
                nopad cannot look.
        """
        name, base = type(self.model).__name__, type(self.model.base).__name__
        if self.calls != 1:
            raise UnsupportedModelError(
                f"{name} calls the {base} inside {self.calls} times on one batch, and nopad follows one call of the "
                "whole of it; call it once, and compute from its states what you need"
            )
        # Zeros where other tokens are looked at, so that a mask that is read shows.
        masked = {"attention_mask": self._mask()} if "attention_mask" in self.given else {}
        run = self.run(**masked)
        crosses, handed, reads = self._followed(run)
        token = [one for one in crosses if tuple(one.shape[:2]) == (1, len(self.tokens))]
        odd = [full for full, one in self._own() if tuple(one.shape[:2]) != (1, len(self.tokens))]
        if handed:
            raise UnsupportedModelError(
                f"{name} gives {base} something that it computed of several tokens (ids, states or a mask of its own), "
                "in which nopad cannot keep sequences apart; hand input_ids and attention_mask on as they come"
            )
        if token or (odd and not self._of_sequences()):
            raise UnsupportedModelError(f"{self._first(run, odd)}; {WAY_OUT}")
        if reads:
            raise UnsupportedModelError(
                f"what {name} computes is not always the same: it reads numbers out of tensors, and may decide by "
                "them, so a proof on some sequences says nothing of others"
            )
        self.sequences = bool(odd)

    def check_always(self) -> None:
        """Check that the wrapper computes in the same way for rows of any length, and any number of rows or sequences.

        It is also checked that no code of the user's own changes gradients (an autograd function or a hook), since such
        code cannot be followed.

        Raises:
            UnsupportedModelError: one of these checks fails.
        """
        name = type(self.model).__name__
        for each in (self.run(), *([self.many()] if self.sequences else [])):
            varied, _ = varying(each, False, whole=True)
            if varied:
                raise UnsupportedModelError(
                    f"what {name} computes is not always the same: {varied}. A proof on some sequences says nothing "
                    "of others"
                )
        backward = backward_of_ones_own(self.run())
        if backward:
            raise UnsupportedModelError(
                f"{name} changes gradients by code of its own ({backward}), which cannot be followed; use functions of "
                "PyTorch, whose gradients are known"
            )

    def _of_sequences(self) -> bool:
        """Return whether each of the wrapper's tensors that is not per token has one entry per sequence.

        Each entry must depend only on what the base returns for that sequence, such as its ``pooler_output``. To find
        out, the wrapper is called with entries of several different sequences in place of the one that the base
        returned.
        """
        run = self.many()
        sizes = [one.shape for _, one in self._own() if tuple(one.shape[:2]) != (1, len(self.tokens))]
        if any(not size or size[0] != 1 for size in sizes):
            return False
        crosses, _, _ = self._followed(run)
        wanted = {(run.length, *size[1:]) for size in sizes}
        with torch.no_grad():
            made = [tuple(one.shape) for _, one in leaves_of(run.at(1, run.length)[1]) if isinstance(one, Tensor)]
        mixed = [one for one in crosses if tuple(one.shape[:2]) != (1, len(self.tokens))]
        return not mixed and all(size in made for size in wanted) and not any(tuple(size) in made for size in sizes)

    def many(self) -> Run:
        """Return the recorded call as a `Run` in which the base returns results of several sequences in one row.

        A tensor of the base with one entry per sequence gets several entries: the recorded entry times different
        factors from 1 to 2. So floats differ between the entries, except where they are 0. Tensors with a dimension of
        tokens stay as recorded.
        """
        length, base = len(self.tokens), self.model.base
        many = next(one for one in SEQUENCES if one != length and not _has_size(self.model, one))

        def expanded(value: Any) -> Any:
            if not isinstance(value, Tensor) or not value.dim() or value.shape[0] != 1 or length in value.shape:
                return value
            # Each sequence gets something else, since equal entries could be exchanged.
            scale = torch.linspace(1, 2, many, dtype=torch.float64).reshape(-1, *[1] * (value.dim() - 1))
            return (value * scale).to(value.dtype)

        held = {base: tree_map(expanded, self.base)}
        return Run(self.model.wrapped, self.given, held, many, self.close, tuple(self.given), sequences=True)

    def _mask(self) -> Tensor:
        mask = torch.ones_like(self.given["attention_mask"])
        mask[:, [0, 2, 3]] = 0
        return mask

    def _followed(self, run: Run) -> tuple[list[Tensor], bool, bool]:
        try:
            return crossing_outputs(run, self.tokens)
        except Exception as error:  # a wrapper's code may raise anything
            raise UnsupportedModelError(
                f"the code of {type(self.model).__name__} cannot be followed ({type(error).__name__}: {error})"
            ) from error

    def _own(self) -> Iterator[tuple[str, Tensor]]:
        """Yield (name, tensor) for the tensors in the wrapper's output that the wrapper computed, not the base.

        Raises:
            UnsupportedModelError: the output holds an object in which nopad cannot look.
        """
        base = {id(one) for _, one in leaves_of(self.base)}
        for full, value in leaves_of(self.output):
            if isinstance(value, Tensor) and id(value) not in base:
                yield full, value
            elif not isinstance(value, (Tensor, *PLAIN)):
                raise UnsupportedModelError(f"{full} is a {type(value).__name__}, in which nopad cannot look")

    def _first(self, run: Run, odd: list[str]) -> str:
        """Return a sentence that says where information first moves between tokens.

        `run` is the recorded call to follow. `odd` has the names of the tensors that the wrapper itself computes and
        that have no entry per token. If there are any, the sentence names the first of them, unless a submodule moved
        the information.
        """
        module, mixes = first_crossing(run, self.tokens)
        name = type(self.model).__name__
        names = {one: f"{key} ({type(one).__name__})" for key, one in self.model.wrapped.named_modules()}
        if odd and not mixes:
            where = "" if module is None else f" before {names[module]}"
            return (
                f"{odd[0]} of {name} is not per token, nor computed from what {type(self.model.base).__name__} gives "
                f"for each sequence alone: the forward method pools a row, reads some tokens of it or mixes rows{where}"
            )
        if module is None:
            return f"the forward method of {name} moves information between tokens by itself"
        if mixes:
            return f"{names[module]} of {name} moves information between tokens, across the borders of sequences"
        return f"the forward method of {name} moves information between tokens by itself, before {names[module]}"


def _same(value: Any) -> Any:
    return value


def _has_size(model: nn.Module, size: int) -> bool:
    return any(size in parameter.shape for parameter in model.parameters())


def _columns(tokens: list[int]) -> dict[str, Tensor]:
    """Return the columns of one sequence, each int64 ``[1, L]``: ids, mask, token types and positions."""
    ids = torch.tensor([tokens])
    return {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "token_type_ids": torch.arange(len(tokens))[None] % 2,
        "position_ids": torch.arange(len(tokens))[None],
    }
