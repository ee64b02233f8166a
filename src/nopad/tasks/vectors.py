"""The task of embedding texts, for `nopad predict`: one vector per text, pooled from an encoder's hidden states.

`nopad.tasks.Embedder` does the same for texts in memory; training embeddings is the task `contrast`.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, ClassVar, NoReturn

import numpy as np
from torch import Tensor

from nopad.batch import PackedBatch
from nopad.corpus.framing import leave_out
from nopad.errors import FormatError, OptionError
from nopad.options import check_choice, shown
from nopad.tasks.examples import Examples, field_of, numbered
from nopad.tasks.folder import Pooling, Texts, prompt_length, read_folder, transformer_folder
from nopad.tasks.objective import Objective
from nopad.tasks.pooled import embed
from nopad.tasks.texts import OfTexts, encoded

__all__ = ["Embedding", "Vectors", "base_model"]


class Vectors(Objective):
    """Base class of objectives whose outputs are ``{"embeddings": [S, H]}``, a vector per sequence; defines no loss.

    Args:
        pooling: the vector is the "mean" of a sequence's last hidden states, or its "first" or "last" one.
        normalize: scale vectors to length 1.
        skip: number of tokens at the beginning of each sequence that are left out of the mean.

    Raises:
        OptionError: the pooling is unknown.
    """

    targets: tuple[str, ...] = ()
    reads = ("embeddings",)

    def __init__(self, pooling: Pooling = "mean", *, normalize: bool = True, skip: int = 0) -> None:
        self.pooling: Pooling = check_choice("pooling", pooling, Pooling)
        self.normalize, self.skip = normalize, skip

    def outputs(self, model: Any, batch: PackedBatch) -> dict[str, Tensor]:
        """Return ``{"embeddings": vectors}``, with a vector per sequence of the batch, ``[S, H]``."""
        inputs = PackedBatch({name: batch[name] for name in batch if name not in self.targets})
        vectors = embed(model, inputs, pooling=self.pooling, normalize=self.normalize, skip=self.skip)
        return {"embeddings": vectors}


class _OnlyVectors(Vectors):
    """`Vectors` for predictions only: the methods `loss`, `denominator` and `meter` raise an error."""

    def denominator(self, batch: PackedBatch) -> NoReturn:
        """Refuse to train.

        Raises:
            OptionError: always.
        """
        _refuse()

    def loss(self, outputs: Any, batch: PackedBatch, denominator: Tensor) -> NoReturn:
        """Refuse to train: always raise OptionError."""
        _refuse()

    def meter(self) -> NoReturn:
        """Refuse to evaluate: always raise OptionError."""
        _refuse()


def _refuse() -> NoReturn:
    raise OptionError("the task embed has nothing to learn from; train embeddings with nopad.tasks.Contrastive")


class Embedding(OfTexts):
    """The task of embedding: one vector per text.

    A prediction has ``embedding``, a list of H floats. `found_options` reads pooling, length and prompts from a
    sentence-transformers folder.

    Args:
        tokenizer: the model's tokenizer.
        text: column of the text.
        pooling: the vector is the "mean" of a text's last hidden states, or the "first" or "last" one.
        normalize: scale vectors to length 1.
        texts: the model's prompts, and how texts are changed before they are tokenised: `nopad.tasks.Texts`, or a dict
            of its arguments.
        prompt: text to put before each text; None: the prompt named `prompt_name`, or else the default prompt of
            `texts`.
        prompt_name: name of one of the prompts of `texts`.
        options: `max_length` and `over_long`, see `Task`; `empty`, see `nopad.tasks.texts.OfTexts`.

    Raises:
        OptionError: an option has an invalid value; or there is a prompt that is not pooled (`Texts.include_prompt`),
            and `pooling` is "first".

    >>> import nopad
    >>> from transformers import BertConfig, BertModel
    >>> task = nopad.tasks.Embedding(tokenizer, text="title")
    >>> sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    >>> [found] = nopad.tasks.predict(task, BertModel(BertConfig(**sizes)), [{"title": "is it ?"}])
    >>> len(found["embedding"])
    16
    """

    name = "embed"
    auto = "AutoModel"
    texts_by: ClassVar[tuple[str, ...]] = ("text",)
    dtypes: ClassVar[Mapping[str, str]] = {"embedding": "float32"}

    def __init__(
        self,
        tokenizer: Any,
        *,
        text: str = "text",
        pooling: Pooling = "mean",
        normalize: bool = True,
        texts: Texts | Mapping[str, Any] | None = None,
        prompt: str | None = None,
        prompt_name: str | None = None,
        **options: Any,
    ) -> None:
        super().__init__(tokenizer, **options)
        self.text = text
        self.texts = _texts(texts)
        self.prompt = self.texts.prompt(prompt, prompt_name)
        self.objective = _OnlyVectors(pooling, normalize=normalize, skip=self._skipped(pooling))

    @classmethod
    def found_options(cls, folder: Path) -> dict[str, Any]:
        """Return the options that a model's folder states, by name; {} if it states none.

        A sentence-transformers folder may state `pooling`, `normalize`, `texts` (with the prompts) and `max_length`;
        any other folder only `max_length`.

        Raises:
            FormatError: a file in the folder is damaged, or requires what nopad does not support; or the model is in
                another folder, texts are to be in lower case, or vectors are to be shortened, which only
                `Embedder.from_folder` does.
        """
        found = read_folder(folder, None)
        short = found.pop("truncate_dim", None)
        if found.pop("lowercase") or short is not None or transformer_folder(folder) != folder:
            raise FormatError(
                f"{folder} has its model in another folder, or asks for texts in lower case (do_lower_case) or for "
                "shortened vectors (truncate_dim), which only nopad.Embedder.from_folder does"
            )
        most = found.pop("max_tokens", None)
        return found if most is None else {**found, "max_length": most}

    def encode(self, records: Iterable[Mapping[str, Any]], *, labels: bool = True) -> Examples:
        """Turn records into sequences, with the prompt before each text; there are no labels. See `Task.encode`.

        Raises:
            RecordError: a record lacks the column, or the column holds no text.
            LengthError: a text is longer than `max_length`, and `over_long` is "error"; a text has no token to pool,
                and `empty` is "error"; a text is to be cut, and has more than `max_length` special tokens; or there is
                no record.
        """
        texts = [self.prompt + field_of(record, self.text, number) for number, record in numbered(records)]
        made = encoded(self, texts)
        short = made.sequences.seq_lengths <= self.objective.skip if self.objective.skip else None
        if short is not None and short.any():
            counts = dict(made.counts)
            for number in made.record[short].tolist():
                leave_out(number, texts[number], counts, self.empty)
            kept = np.flatnonzero(~short)
            made = replace(made, sequences=made.sequences.take(kept), record=made.record[kept], counts=counts)
        return made

    objective: Vectors

    def results(self, outputs: Any, batch: PackedBatch) -> list[dict[str, Any]]:
        """Return, for each sequence, ``embedding``: its vector, as a list of H floats (single precision)."""
        return [{"embedding": vector} for vector in outputs["embeddings"].float().tolist()]

    def model(self, name: Any, **options: Any) -> Any:
        """Load a base model; see `Task.model`.

        Its pooling layer is left out if the model's class allows it, since these vectors do not use the layer.
        """
        return base_model(super().model, name, **options)

    def _skipped(self, pooling: str) -> int:
        """Return how many tokens at the beginning of each sequence are left out of the mean.

        If there is a prompt that is not pooled, these are the prompt's tokens and the special tokens before it.
        Otherwise, and if `pooling` is "last", the number is 0.

        Raises:
            OptionError: there is a prompt that is not pooled (`Texts.include_prompt`), and `pooling` is "first".
        """
        if not self.prompt or self.texts.include_prompt or pooling == "last":
            return 0
        if pooling == "first":
            raise OptionError(
                "this model pools the first token and does not pool prompts, which versions of sentence-transformers "
                "understand in different ways; give prompt='', or Texts(include_prompt=True)"
            )
        return prompt_length(self.tokenizer(self.prompt)["input_ids"], self.tokenizer.all_special_ids)


def _texts(given: Texts | Mapping[str, Any] | None) -> Texts:
    if given is None or isinstance(given, Texts):
        return given or Texts()
    names = [field.name for field in fields(Texts)]
    if not isinstance(given, Mapping) or set(given) - set(names):
        raise OptionError(f"texts are {shown(given)}; expected nopad.tasks.Texts, or a dict with {', '.join(names)}")
    return Texts(**given)


def base_model(load: Any, name: Any, **options: Any) -> Any:
    """Return the base model that ``load(name, **options)`` loads, without a pooling layer if the class can omit it."""
    import transformers

    config = options.get("config") or transformers.AutoConfig.from_pretrained(name)
    classes: Any = transformers.MODEL_MAPPING
    kind = classes.get(type(config), None)
    if kind is not None and not isinstance(kind, tuple) and _has_pooler(kind):
        options = {"add_pooling_layer": False, **options}
    return load(name, **{**options, "config": config})


def _has_pooler(kind: Any) -> bool:
    return "add_pooling_layer" in inspect.signature(kind.__init__).parameters
