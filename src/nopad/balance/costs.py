"""Cost models: how much work a sequence is for its rank, as an exact 64-bit integer.

A cost model is a subclass of `CostModel` with one method, `of`. Costs are compared and added, so their unit does not
matter, as long as all costs of an epoch have the same unit. `Tokens` counts tokens. `Attention` adds the attention of
tokens to one another, which at long context is most of the work. `Measured` is fitted to timings of real steps.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from nopad.errors import BalanceError, OptionError
from nopad.histogram import integers
from nopad.options import check_integer, is_number, parse_integer, shown

__all__ = ["Attention", "CostModel", "Measured", "Tokens", "check_costs", "cost_model", "fingerprint", "round_up"]

_MOST = 2**63 - 1
_PROBED = 1024  # most lengths at which a fingerprint evaluates a model


class CostModel(ABC):
    """Base class of cost models. A cost model computes the cost of a sequence from its length; a subclass defines `of`.

    A cost is an integer, in a unit that the subclass chooses: only ratios of costs matter.
    """

    @abstractmethod
    def of(self, seq_lengths: ArrayLike) -> NDArray[np.int64]:
        """Return the cost of each sequence, int64 ``[n]``, at least 0.

        Args:
            seq_lengths: lengths in tokens; ``[n]``.

        Raises:
            BalanceError: a length is negative, or a cost does not fit into 64 bits.
            LengthError: lengths are not integers, not one-dimensional, or masked.
        """

    def checked(self, seq_lengths: ArrayLike) -> NDArray[np.int64]:
        """Return the costs that `of` returns, as int64 ``[n]``, after a check, since users may write cost models.

        Raises:
            BalanceError: `of` did not return one integer of at least 0 for each length, or one does not fit into 64
                bits; or `of` raised this error.
            LengthError: `of` raised this error.
        """
        found = np.asarray(self.of(seq_lengths))
        n = np.size(seq_lengths)
        if found.shape != (n,) or found.dtype.kind not in "iu":
            raise BalanceError(
                f"{self!r} gives {found.dtype} {list(found.shape)} as the costs of {n} sequences; `of` must give an "
                "integer for each: round them, in a unit that is small enough"
            )
        if n and int(found.min()) < 0:
            raise BalanceError(f"{self!r} gives a cost of {int(found.min())}; costs are integers of at least 0")
        if n and int(found.max()) > _MOST:
            raise BalanceError(_overflow("the cost of a sequence", int(found.max())))
        return found.astype(np.int64, copy=False)

    def of_packs(self, indptr: NDArray[Any], seq_lengths: ArrayLike) -> NDArray[np.int64]:
        """Return the cost of each pack, int64 ``[packs]``: the sum over its sequences.

        Args:
            indptr: where packs begin and end: pack p holds the sequences of lengths
                ``seq_lengths[indptr[p]:indptr[p + 1]]``; ``[packs + 1]``.
            seq_lengths: lengths of the sequences, pack by pack; ``[n]``.

        Raises:
            BalanceError: a length is negative; `of` did not return one integer of at least 0 for each length; or the
                largest cost of a sequence, times the largest number of sequences in a pack, does not fit into 64 bits.
            LengthError: lengths are not integers, not one-dimensional, or masked.

        >>> Attention(hidden_size=1).of_packs(np.array([0, 1, 3]), [4, 2, 2]).tolist()
        [40, 32]
        """
        costs = self.checked(seq_lengths)
        most = int(np.diff(indptr).max(initial=0)) * int(costs.max(initial=0))
        if most > _MOST:
            raise BalanceError(_overflow("the cost of a pack", most))
        # The running sums may overflow, but their differences are still exact.
        ends = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(costs)])
        return np.asarray(ends[indptr[1:]] - ends[indptr[:-1]])


@dataclass(frozen=True)
class Tokens(CostModel):
    """The cost of a sequence is its number of tokens.

    >>> Tokens().of([5, 3]).tolist()
    [5, 3]
    """

    def of(self, seq_lengths: ArrayLike) -> NDArray[np.int64]:
        """Return the lengths themselves, int64 ``[n]``.

        Raises:
            BalanceError: a length is negative or does not fit into 64 bits.
            LengthError: lengths are not integers, not one-dimensional, or masked.
        """
        return _polynomial(seq_lengths, 1, 0)


@dataclass(frozen=True)
class Attention(CostModel):
    """The cost of a sequence is ``6 * hidden_size * length + length**2``: the work for its tokens and for attention.

    Let H be the hidden size of a transformer layer, and 4 H the width of its feed-forward part. Then a token takes
    24 H^2 operations for the matrices, and ``4 * H * length`` for attention. The ratio is ``6 * H : length``.

    Attributes:
        hidden_size: width of the model. For layers of other proportions, `of_model` finds the value to use instead.

    Raises:
        OptionError: the hidden size is not an integer from 1 to 2^31 - 1.

    >>> Attention(hidden_size=1024).of([512]).tolist()
    [3407872]
    """

    hidden_size: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "hidden_size", check_integer("hidden_size", self.hidden_size))

    def of(self, seq_lengths: ArrayLike) -> NDArray[np.int64]:
        """Return the cost of each sequence, int64 ``[n]``.

        Raises:
            BalanceError: a length is negative, or a cost does not fit into 64 bits.
            LengthError: lengths are not integers, not one-dimensional, or masked.
        """
        return _polynomial(seq_lengths, 6 * self.hidden_size, 1)

    @classmethod
    def of_model(cls, config: Any, *, causal: bool | None = None) -> Attention:
        """Return a cost model for a transformer with this config.

        What matters is the ratio of a layer's work for attention to its work for matrices. It is computed from:

        * the config's widths, and its number of heads for keys and values
        * whether the feed-forward part is gated: its activation is SiLU, or the config has a `hidden_activation`
        * the number of experts per token
        * whether attention is causal: then half as many tokens are attended to

        The result is `Attention` with the `hidden_size` that gives this ratio. This value usually differs from the
        config's own `hidden_size`. Sliding windows and linear attention are counted as full attention, so their cost is
        overstated.

        Args:
            config: the model's config, or any object with the same attributes; if it has a `text_config`, that is used
                instead.
            causal: whether tokens attend only to the tokens before them. None: True if the `is_decoder` of the config,
                or of its `text_config`, is true, or one of the `architectures` of the two ends in ``CausalLM`` or
                ``LMHeadModel``. With a `text_config` and no encoder, ``ForConditionalGeneration`` counts too.

        Raises:
            OptionError: the config has no hidden size.
        """
        outer, config = config, getattr(config, "text_config", None) or config
        hidden = _attribute(config, "hidden_size", "n_embd", "d_model", "dim")
        if hidden is None:
            raise OptionError(f"{type(config).__name__} has no hidden_size; give Attention(hidden_size=...)")
        heads = _attribute(config, "num_attention_heads", "n_head", "num_heads", "n_heads") or 1
        width = heads * (_attribute(config, "head_dim") or hidden // heads)
        key_width = width * (_attribute(config, "num_key_value_heads") or heads) // heads
        matrices = 2 * hidden * (width + key_width) + _feed_forward(config, hidden)
        attended = width if (_is_causal(outer, config) if causal is None else causal) else 2 * width
        return cls(max(1, round(matrices / (6 * attended))))


def _feed_forward(config: Any, hidden: int) -> int:
    """Return the number of feed-forward weights of a layer that one token uses.

    In a mixture of experts, these are the weights of the experts that the token goes to.
    """
    wide = _attribute(config, "intermediate_size", "n_inner", "d_ff", "hidden_dim") or 4 * hidden
    visited = _attribute(config, "num_experts_per_tok", "num_experts_per_token")
    if visited:
        wide = visited * (_attribute(config, "moe_intermediate_size") or wide)
    gated = _attribute(config, "hidden_act") in ("silu", "swish") or _attribute(config, "hidden_activation")
    return int((3 if gated else 2) * hidden * wide)


def _is_causal(outer: Any, text: Any) -> bool:
    """Return whether tokens attend only to those before them; `text` is the text config of `outer`, or `outer` itself.

    A model with a text config also takes images or sound. It generates text with a causal language model, unless it has
    an encoder. Its text config mostly has no `architectures`, so those of `outer` count too.
    """
    both = (outer, text)
    ends = ["CausalLM", "LMHeadModel"]
    if text is not outer and not any(getattr(one, "is_encoder_decoder", False) for one in both):
        ends.append("ForConditionalGeneration")
    names = [name for one in both for name in getattr(one, "architectures", None) or ()]
    return any(getattr(one, "is_decoder", False) for one in both) or any(name.endswith(tuple(ends)) for name in names)


@dataclass(frozen=True)
class Measured(CostModel):
    """The cost of a sequence is the time that it takes, in nanoseconds; `fit` finds the coefficients from timings.

    Attributes:
        ns_per_token: nanoseconds per token.
        ns_per_square: nanoseconds for each of the ``length**2`` pairs of tokens of a sequence.
        ns_per_batch: constant nanoseconds per batch; not part of the cost of a sequence.

    Raises:
        OptionError: a value is not a number, is negative or is not finite.
    """

    ns_per_token: float
    ns_per_square: float
    ns_per_batch: float = 0.0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not is_number(value) or value < 0:
                raise OptionError(f"{name} is {shown(value)}; it is a number of nanoseconds, at least 0")

    def of(self, seq_lengths: ArrayLike) -> NDArray[np.int64]:
        """Return the nanoseconds that each sequence takes, rounded, and at least 1; int64 ``[n]``.

        Raises:
            BalanceError: a length is negative, or a cost does not fit into 64 bits.
            LengthError: lengths are not integers, not one-dimensional, or masked.
        """
        lengths = _lengths(seq_lengths)
        with np.errstate(over="ignore"):  # infinity is refused below
            nanoseconds = self.ns_per_token * lengths + self.ns_per_square * lengths.astype(np.float64) ** 2
        if nanoseconds.size and not float(nanoseconds.max()) < _MOST:
            raise BalanceError(_overflow("the cost of a sequence", float(nanoseconds.max())))
        return np.maximum(np.rint(nanoseconds).astype(np.int64), 1)

    @classmethod
    def fit(cls, seq_lengths: Sequence[ArrayLike], seconds: ArrayLike) -> Measured:
        """Return a cost model fitted to timings by least squares; no coefficient is negative.

        Args:
            seq_lengths: for each timed batch, the lengths of its sequences.
            seconds: how long each batch took; float ``[batches]``.

        Raises:
            OptionError: there are fewer than three batches; there is not one time for each batch; a time is not finite
                or not above 0; or the batches are too similar to tell the cost of tokens from that of attention.
            BalanceError: a length is negative or does not fit into 64 bits.
            LengthError: the lengths of a batch are not integers, not one-dimensional, or masked.

        In the example, a sequence of 1,000 tokens takes 20 million nanoseconds:

        >>> model = Measured.fit([[100], [200], [100, 300], [400]], [1.1e-3, 2.4e-3, 5.0e-3, 5.6e-3])
        >>> model.of([1000]).tolist()
        [20000000]
        """
        from scipy.optimize import nnls

        batches = [_lengths(lengths).astype(np.float64) for lengths in seq_lengths]
        times = np.asarray(seconds, dtype=np.float64)
        if times.shape != (len(batches),) or len(batches) < 3:
            raise OptionError(
                f"{len(batches)} batches and times of shape {times.shape}; give at least 3, one time each"
            )
        if not (np.isfinite(times) & (times > 0)).all():
            raise OptionError("times must be finite and above 0 seconds")
        terms = np.array([[1.0, lengths.sum(), lengths @ lengths] for lengths in batches])
        scale = terms.max(axis=0, initial=0)
        if np.linalg.matrix_rank(terms / np.maximum(scale, 1)) < 3:
            raise OptionError("the batches are too much alike to tell tokens from attention; time batches that differ")
        found = nnls(terms / scale, times)[0] / scale * 1e9
        return cls(ns_per_token=float(found[1]), ns_per_square=float(found[2]), ns_per_batch=float(found[0]))


def fingerprint(model: CostModel, longest: int) -> str:
    """Return a text: the class name of a cost model, and a digest of its costs at up to 1,024 lengths.

    The lengths go from 1 to `longest`, evenly spaced on a logarithmic scale and rounded.

    Models of the same class name with equal costs at these lengths have equal fingerprints, in every process.

    Raises:
        BalanceError: the model does not give one integer of at least 0 for each length, or a cost does not fit into 64
            bits.

    >>> fingerprint(Tokens(), 512) == fingerprint(Tokens(), 512) != fingerprint(Attention(hidden_size=1), 512)
    True
    """
    lengths = np.unique(np.geomspace(1, longest, _PROBED).round().astype(np.int64))
    digest = hashlib.sha256(np.ascontiguousarray(model.checked(lengths), "<i8").data).hexdigest()
    return f"{type(model).__name__} {digest[:32]}"


def round_up(seq_lengths: ArrayLike, multiple: int) -> NDArray[np.int64]:
    """Return each length rounded up to a multiple of `multiple`, as if sequences were padded to it; int64 ``[n]``.

    Context parallelism over c ranks needs multiples of ``2 * c``.

    Raises:
        OptionError: `multiple` is not an integer from 1 to 2^31 - 1.
        BalanceError: a length is negative or does not fit into 64 bits once it is rounded up.
        LengthError: lengths are not integers, not one-dimensional, or masked.

    >>> round_up([1, 8, 9], 8).tolist()
    [8, 8, 16]
    """
    multiple = check_integer("multiple", multiple)
    lengths = _lengths(seq_lengths)
    longest = -(-int(lengths.max(initial=0)) // multiple) * multiple
    if longest > _MOST:
        raise BalanceError(f"a length rounded up to a multiple of {multiple} is {longest}, which is above 2^63 - 1")
    return -(-lengths // multiple) * multiple


def check_costs(costs: ArrayLike) -> NDArray[np.int64]:
    """Return `costs` as int64 ``[n]``, after a check.

    Raises:
        BalanceError: a cost is negative, or the sum of all costs does not fit into 64 bits.
        LengthError: costs are not integers, not one-dimensional, or masked.
    """
    array = integers(costs)
    if array.size == 0:
        return array.astype(np.int64)
    lowest, highest = int(array.min()), int(array.max())
    if lowest < 0:
        raise BalanceError(f"cost {lowest} at index {int(array.argmin())}; costs are integers of at least 0")
    if highest * array.size > _MOST and (total := sum(array.tolist())) > _MOST:
        raise BalanceError(_overflow("the sum of all costs", total))
    return np.ascontiguousarray(array, dtype=np.int64)


def _polynomial(seq_lengths: ArrayLike, per_token: int, per_square: int) -> NDArray[np.int64]:
    """Return ``per_token * length + per_square * length**2`` for each length, exactly; int64 ``[n]``.

    Raises:
        BalanceError: a length is negative, or a result does not fit into 64 bits.
        LengthError: lengths are not integers, not one-dimensional, or masked.
    """
    lengths = _lengths(seq_lengths)
    longest = int(lengths.max(initial=0))
    most = per_token * longest + per_square * longest**2
    if most > _MOST:
        raise BalanceError(_overflow(f"the cost of {longest} tokens", most))
    return lengths * (per_token + per_square * lengths) if per_square else per_token * lengths


def _lengths(seq_lengths: ArrayLike) -> NDArray[np.int64]:
    array = integers(seq_lengths)
    if array.size and int(array.min()) < 0:
        raise BalanceError(f"length {int(array.min())} at index {int(array.argmin())}; lengths are not negative")
    if array.size and int(array.max()) > _MOST:
        raise BalanceError(_overflow("a length", int(array.max())))
    return array.astype(np.int64)


def _attribute(config: Any, *names: str) -> Any:
    return next((value for name in names if (value := getattr(config, name, None)) is not None), None)


def _overflow(what: str, value: float) -> str:
    return f"{what} is {value}, which does not fit into 64 bits; use a coarser cost model"


def cost_model(text: str) -> CostModel:
    """Return the cost model that `text` names: ``tokens``, or ``attention:HIDDEN_SIZE``.

    Raises:
        OptionError: `text` is neither of the two, or the hidden size is not an integer from 1 to 2^31 - 1.

    >>> cost_model("attention:1024")
    Attention(hidden_size=1024)
    """
    kind, _, size = text.partition(":")
    if kind == "tokens" and not size:
        return Tokens()
    hidden_size = parse_integer(size) if size.isascii() else None
    if kind == "attention" and hidden_size is not None:
        return Attention(hidden_size=hidden_size)
    raise OptionError(f"cost must be tokens or attention:HIDDEN_SIZE, such as attention:1024, got {text!r}")
