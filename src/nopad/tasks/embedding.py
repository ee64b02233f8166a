"""Embed texts: run an encoder on flat batches (all texts in one row), and pool its hidden states to vectors.

`Embedder.from_folder` loads a model, with the pooling and normalisation that its folder states. `Embedder.encode` runs
the shortest texts first, about `budget` tokens at a time (an argument of `Embedder`), and returns the vectors in the
order of the texts. `nopad.PackRunner` runs the same embedder on texts as they arrive. Prompts are prepended as in
sentence-transformers (`nopad.tasks.folder`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence, Set
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from nopad.batch import PackedBatch
from nopad.batch.arrays import ids_array, is_list, read
from nopad.corpus.tokenizer import load_tokenizer, with_words
from nopad.errors import BatchError, FormatError, LengthError, OptionError, RecordError, RequestError
from nopad.model.admission import device_of, positions_of
from nopad.model.embedded import input_embeddings
from nopad.model.modes import evaluated
from nopad.model.precision import Precision
from nopad.model.safety import bare, facts_of
from nopad.options import Option, shown
from nopad.sequences import Sequences
from nopad.tasks.core import Core, Prepared, by_length, odd_rows
from nopad.tasks.encoding import Shown, check_dim, check_encoding, given_as, progress, shortened, width_of
from nopad.tasks.folder import (
    Pooling,
    Texts,
    default_folder,
    lower_cased,
    prompt_length,
    quiet,
    read_folder,
    transformer_folder,
)
from nopad.tasks.pooled import check_pooling, embed
from nopad.threads import new_lock
from nopad.wording import first_line

__all__ = ["Embedder"]

_HUB_NAME = re.compile(r"\w[\w.-]*(/[\w.-]+)?")
BUDGET = Option(default=4096, help="tokens run at a time, about")
SKIP = "skip"  # column: number of tokens at the beginning of each sequence that are not pooled
OverLong = Literal["error", "truncate"]


class Embedder(Core):
    """A model with its tokenizer, which embeds texts: `encode` returns one vector per text.

    Attributes:
        model: the pack-safe model.
        tokenizer: the tokenizer, as `nopad.load_tokenizer` returns it.
        pooling, normalize: how vectors are made from hidden states, as in `embed`.
        texts: the model's prompts (`nopad.tasks.Texts`).
        max_tokens: most tokens of a text, special tokens included; None: unlimited, as for T5.
        truncate_dim: number of first dimensions of each vector that are returned by default; None: all.
        truncated: number of texts truncated so far.

    >>> from transformers import BertConfig, BertModel
    >>> from nopad.tasks import Embedder
    >>> sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    >>> embedder = Embedder(BertModel(BertConfig(**sizes)), tokenizer)
    >>> embedder.encode(["is it red ?", "yes"]).shape
    (2, 16)
    """

    request = "a text"

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        pooling: Pooling = "mean",
        normalize: bool = True,
        texts: Texts | None = None,
        max_tokens: int | None = None,
        truncate_dim: int | None = None,
        budget: int = 4096,
        precision: Precision | None = None,
    ) -> None:
        """Make the model pack-safe if it is not yet, and put it into evaluation mode.

        If `precision` is None, this changes `model` in place. If it is "bfloat16" or "int8", the embedder gets a copy
        of the model that computes in that precision (`nopad.model.lowered`), and `model` itself stays as it is. The
        weights must not change while `encode` runs, since `nopad.model.fast_linear` works on copies of them.

        `tokenizer` is anything that `nopad.load_tokenizer` accepts. Long texts are cut at the end; if the tokenizer is
        one of transformers, they are cut at its `truncation_side`. If `max_tokens` is None, a text may have as many
        tokens as the model has positions. About `budget` tokens are run at a time. Vectors have their first
        `truncate_dim` dimensions, wherever `encode` does not say otherwise; None: all.

        Raises:
            OptionError: the pooling is unknown; there is no tokenizer; `texts` are not `Texts`; `max_tokens` is not an
                integer of at least 1, exceeds the model's positions, or is below the number of special tokens around a
                text; `truncate_dim` is neither None nor an integer from 1 to the number of dimensions; `budget` is not
                an integer of at least 1; or the model's precision cannot be lowered.
            UnsupportedModelError: nopad refuses this model; the message gives the reason.
            FormatError, MissingExtraError: as for `nopad.load_tokenizer`.
        """
        check_pooling(pooling)
        if tokenizer is None:
            raise OptionError("tokenizer is None; give that of the model, as nopad.load_tokenizer(folder) does")
        super().__init__(model, precision=precision)
        self.tokenizer = load_tokenizer(tokenizer)
        self._from_left = getattr(tokenizer, "truncation_side", None) == "left"
        special = getattr(tokenizer, "all_special_ids", None)
        self._special = self.tokenizer.special_ids() if special is None else set(special)
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
        self.max_tokens = self.longest = limit if max_tokens is None else max_tokens
        self.truncate_dim = check_dim(self.model, truncate_dim)
        self.budget = BUDGET.check("budget", budget)
        self.truncated = 0
        self._counting = new_lock()

    @classmethod
    def from_folder(cls, folder: str | Path | None = None, **how: Any) -> Embedder:
        """Load an embedder from a folder of sentence-transformers or of transformers.

        If `folder` is None, the installed model all-MiniLM-L6-v2 is loaded.

        `how` are arguments of the class, except `model` and `tokenizer`; they replace what is read from the folder.

        Raises:
            FormatError: there is no such folder, it has no model or no tokenizer, a file in it is damaged, or it
                requires a pooling or a module that nopad does not support.
            OptionError: `folder` is not a path, or the class refuses an argument.
            UnsupportedModelError: nopad refuses this model; the message gives the reason.
            MissingExtraError: no folder is given, and the package with the default model is not installed.
        """
        if folder is not None and not isinstance(folder, str | Path):
            raise OptionError(f"folder is of type {type(folder).__name__}; expected a path")
        path = default_folder() if folder is None else Path(folder)
        if not path.exists():
            way = "give the path of a model's folder"
            if _HUB_NAME.fullmatch(str(folder)):
                way += (
                    f"; of a name on the Hugging Face hub, huggingface_hub.snapshot_download({str(folder)!r}) makes one"
                )
            raise FormatError(f"{str(folder)!r} is no folder here, and from_folder takes only folders; {way}")
        where = transformer_folder(path)
        if not (where / "config.json").is_file():
            raise FormatError(f"{path} is no folder with a model: it has no config.json")
        from transformers import AutoConfig, AutoModel, AutoTokenizer

        try:
            config = AutoConfig.from_pretrained(where)
            pooler = {"add_pooling_layer": False} if config.model_type in ("bert", "roberta", "xlm-roberta") else {}
            with quiet():  # the pooler's weights are left out on purpose
                model = AutoModel.from_pretrained(where, config=config, **pooler)
        except (OSError, ValueError) as error:
            raise FormatError(f"transformers cannot load the model in {where}: {first_line(error)}") from error
        rotary = "max_tokens" not in how and any(
            "rotary" in name.rpartition(".")[2] for name, _ in model.named_modules()
        )
        found = {**read_folder(path, _positions(model), rotary=rotary), **how}
        lowercase = found.pop("lowercase")
        try:
            tokenizer = AutoTokenizer.from_pretrained(where)
        except Exception as error:  # its own code may raise anything
            raise FormatError(f"transformers cannot load the tokenizer in {where}: {first_line(error)}") from error
        with_words(tokenizer, where)
        return cls(model, lower_cased(tokenizer) if lowercase else tokenizer, **found)

    def __repr__(self) -> str:
        """Return one line: the model, how vectors are made, the most tokens of a text, and how many texts were cut."""
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
        inputs: Iterable[str],
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int | None = None,
        show_progress_bar: bool | None = None,
        output_value: str = "sentence_embedding",
        precision: str = "float32",
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        device: Any = None,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
        *,
        over_long: OverLong = "error",
    ) -> Any:
        """Return one vector per text, in order; float32 ``[n, H]``. For a single text, return its vector; ``[H]``.

        The arguments have the names, the order and the meanings of sentence-transformers' `encode`, except where
        `batch_size` and `over_long` say otherwise.

        Args:
            inputs: n texts, or one text.
            prompt_name: name of one of the model's own prompts (``Embedder.texts.prompts``). Without `prompt` and
                `prompt_name`, the default prompt of ``Embedder.texts`` is used, if it has one.
            prompt: text to put before each text; "": no prompt.
            batch_size: most texts run at a time; None: any number, which is faster. Whatever its value, texts run at a
                time have about `budget` tokens at most, and the vectors differ only by rounding.
            show_progress_bar: True: draw a progress bar on standard error.
            output_value: "sentence_embedding". Other values are refused.
            precision: "float32". Vectors in other precisions are refused; the argument of the class with this name says
                in which precision the model computes.
            convert_to_numpy: False: return a list of n tensors ``[H]`` instead of an array.
            convert_to_tensor: True: return one tensor ``[n, H]`` instead, whatever `convert_to_numpy` is. Tensors are
                on the model's device.
            device: None, or the device on which the model is. Other devices are refused.
            normalize_embeddings: True: scale vectors to length 1, even if `normalize` of this embedder is False.
            truncate_dim: return only the first `truncate_dim` dimensions of each vector. They are scaled to length 1
                again only if `normalize_embeddings` is True. None: as many as `truncate_dim` of this embedder says.
            over_long: what to do with texts above `max_tokens`: "error" refuses them, "truncate" cuts and counts them
                (`truncated`). sentence-transformers cuts them, and neither warns nor counts.

        Raises:
            LengthError: a text is too long and `over_long` is "error"; or a text has no token, or no token after a
                prompt that is not pooled.
            OptionError: there is no prompt named `prompt_name`, both `prompt` and `prompt_name` are given, `inputs` are
                not strings, or another option has a value that is not allowed; or there is a prompt that must not be
                pooled (`Texts.include_prompt`), and the pooling is "first".
            RecordError: the model gives NaN for a text.
            FormatError: the tokenizer cannot encode a text.

        >>> from transformers import BertConfig, BertModel
        >>> sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
        >>> from nopad.tasks import Embedder
        >>> embedder = Embedder(BertModel(BertConfig(**sizes)), tokenizer)
        >>> embedder.encode(["is it red ?", "yes"], batch_size=64, convert_to_tensor=True).shape
        torch.Size([2, 16])
        >>> embedder.encode("yes", normalize_embeddings=True).shape
        (16,)
        """
        form = check_encoding(
            self.model,
            batch_size=batch_size,
            precision=precision,
            output_value=output_value,
            device=device,
            truncate_dim=truncate_dim,
            normalize_embeddings=normalize_embeddings,
            convert_to_numpy=convert_to_numpy,
            convert_to_tensor=convert_to_tensor,
            show_progress_bar=show_progress_bar,
        )
        several = isinstance(inputs, Iterable) and getattr(inputs, "ndim", 1) != 0  # an array may be a single number
        if not several or isinstance(inputs, Mapping | Set):
            raise OptionError(f"inputs are of type {type(inputs).__name__}; expected a list of texts")
        given = [inputs] if isinstance(inputs, str) else list(inputs)
        sequences, skip, _ = self._tokenised(given, prompt, prompt_name, over_long)
        normalize = self.normalize or normalize_embeddings
        with progress(show_progress_bar, len(sequences)) as done:
            vectors = self._vectors(sequences, skip, most=batch_size, normalize=normalize, done=done)
        most = self.truncate_dim if truncate_dim is None else truncate_dim
        vectors = shortened(vectors, most, normalize=normalize_embeddings)
        return given_as(vectors, form, isinstance(inputs, str), device_of(self.model))

    def encode_query(
        self, inputs: Iterable[str], prompt_name: str | None = None, prompt: str | None = None, *args: Any, **how: Any
    ) -> Any:
        """Return the vectors of queries, as `encode` does, with the model's prompt named "query".

        If the model has no such prompt, its default prompt is not used either. `prompt_name` or `prompt` choose another
        prompt. All arguments and errors are those of `encode`.
        """
        return self.encode(inputs, *self._either(prompt_name, prompt, "query"), *args, **how)

    def encode_document(
        self, inputs: Iterable[str], prompt_name: str | None = None, prompt: str | None = None, *args: Any, **how: Any
    ) -> Any:
        """Return the vectors of documents, as `encode` does, with the model's own prompt for documents.

        That is the prompt named "document", else "passage", else "corpus". If the model has none of them, its default
        prompt is not used either. `prompt_name` or `prompt` choose another prompt. All arguments and errors are those
        of `encode`.
        """
        return self.encode(inputs, *self._either(prompt_name, prompt, "document", "passage", "corpus"), *args, **how)

    def _either(self, prompt_name: str | None, prompt: str | None, *names: str) -> tuple[str | None, str | None]:
        """Return the arguments `prompt_name` and `prompt` for `encode`, as a pair.

        They are returned unchanged unless both are None. Then the first of `names` that is the name of one of the
        model's prompts is chosen; if none is, the result means "no prompt".
        """
        if prompt_name is not None or prompt is not None:
            return prompt_name, prompt
        for name in names:
            if name in self.texts.prompts:
                return name, None
        return None, ""

    def is_one(self, given: Any) -> bool:
        """Return whether `given` is a single text."""
        return isinstance(given, str)

    def prepare(self, requests: Sequence[Any], **how: Any) -> tuple[list[Prepared], Mapping[str, int]]:
        """Tokenise texts; return one `Prepared` per text, in order, and ``{"truncated": number of texts cut}``.

        The mapping is empty if no text was cut. `how` may have `prompt`, `prompt_name` and `over_long`, as in `encode`.

        Raises:
            OptionError: `how` has another option, or a value that `encode` refuses; or a text is not a string.
            LengthError: a text is too long and `over_long` is "error"; or a text has no token, or no token after a
                prompt that is not pooled.
            FormatError: the tokenizer cannot encode a text.
        """
        if odd := how.keys() - {"prompt", "prompt_name", "over_long"}:
            raise OptionError(
                f"there is no option {shown(min(odd))} of a text; there are prompt, prompt_name and over_long"
            )
        sequences, skip, cut = self._tokenised(requests, **how)
        column = {SKIP: np.array([skip])}
        made = [
            Sequences(seq_lengths=np.array([ids.size], np.int32), tokens={"input_ids": ids}, values=column)
            for ids in sequences
        ]
        return [Prepared(one) for one in made], {"truncated": cut} if cut else {}

    def results_of(self, batch: PackedBatch, model: Any) -> list[Any]:
        """Return the vector of each sequence, float32 ``[H]``, or a RequestError if the model gives NaN for it.

        `model` is the embedder's own model, or a `nopad.model.compiled.CompiledRows` of it. The column ``skip``, which
        the model does not get, is removed from `batch`, in place.
        """
        skip = batch.pop(SKIP).cpu().numpy() if SKIP in batch else 0
        vectors = shortened(self._embedded(model, batch, skip, self.normalize), self.truncate_dim)
        found: list[Any] = [vector.copy() for vector in vectors]
        for at in odd_rows(vectors):
            found[at] = RequestError("the model gives NaN for this text")
        return found

    def finish(self, prepared: Prepared, results: Sequence[Any]) -> NDArray[np.float32]:
        """Return the vector of a text; float32 ``[H]``."""
        found: NDArray[np.float32] = results[0]
        return found

    def gathered(self, answers: list[Any]) -> NDArray[np.float32]:
        """Stack `answers`, the vectors of n texts (each from `finish`), into one array ``[n, H]``, as `encode` does."""
        return np.stack(answers) if answers else self.encode_ids([])

    @property
    def shape(self) -> tuple[int, int | None]:
        """Batch size: (`budget`, None), a flat batch of about `budget` tokens."""
        return self.budget, None

    def _tokenised(
        self,
        texts: Sequence[str],
        prompt: str | None = None,
        prompt_name: str | None = None,
        over_long: OverLong = "error",
    ) -> tuple[list[NDArray[np.int64]], int, int]:
        """Return the ids of each text, how many tokens at its beginning are not pooled, and how many texts were cut.

        The ids include those of the prompt and of special tokens. The second result is one number, the same for all
        texts. The third is also added to `truncated`.

        Raises:
            OptionError: a text is not a string, or an argument has a value that `encode` refuses.
            LengthError: a text is too long and `over_long` is "error"; or a text has no token, or no token after a
                prompt that is not pooled.
            FormatError: the tokenizer cannot encode a text.
        """
        for number, text in enumerate(texts):
            if not isinstance(text, str):
                raise OptionError(f"text {number} is of type {type(text).__name__}; expected a str")
        if not isinstance(over_long, str) or over_long not in ("error", "truncate"):
            raise OptionError(f"over_long is {shown(over_long)}; it must be 'error' or 'truncate'")
        before = self.texts.prompt(prompt, prompt_name)
        around, room, sequences = (self.tokenizer.prefix, self.tokenizer.suffix), self.content_capacity, []
        cut = 0
        for number, ids in enumerate(self.tokenizer.encode([before + text for text in texts])):
            if room is not None and ids.size > room:
                if over_long == "error":
                    raise LengthError(
                        f"text {number} has {ids.size + sum(map(len, around))} tokens, and {self.max_tokens} is the "
                        'most of this model; choose over_long="truncate", or split it'
                    )
                cut += 1
                ids = ids[ids.size - room :] if self._from_left else ids[:room]
            sequences.append(np.concatenate([around[0], ids, around[1]]))
        skip = self._skipped(before)
        for number, sequence in enumerate(sequences):
            if sequence.size <= skip:
                raise LengthError(f"text {number} has no token besides its prompt, so that nothing is left to pool")
        with self._counting:
            self.truncated += cut
        return sequences, skip, cut

    def encode_ids(self, sequences: Sequence[Any]) -> NDArray[np.float32]:
        """Return one vector per sequence of token ids, in order; float32 ``[n, H]``.

        The ids must include special tokens and, if wanted, a prompt. All tokens are pooled.

        Raises:
            OptionError: `sequences` is not a list of lists of ids.
            LengthError: a sequence has no token, or more than the model has positions.
            BatchError: an id is not an integer, or not in the vocabulary.
            RecordError: the model gives NaN for a sequence.
        """
        if not hasattr(sequences, "__len__") or isinstance(sequences, str | bytes | Mapping | Set):
            raise OptionError(f"sequences are of type {type(sequences).__name__}; expected a list of lists of ids")
        words = getattr(input_embeddings(bare(self.model)), "num_embeddings", None)
        found = []
        for number, given in enumerate(read(sequences, "input_ids")):
            if not is_list(given):
                raise OptionError(f"sequence {number} is of type {type(given).__name__}; expected a list of ids")
            ids = ids_array(given, "input_ids", number)
            if words and ids.size and not 0 <= ids.min() <= ids.max() < words:
                odd = ids.min() if ids.min() < 0 else ids.max()
                raise BatchError(f"sequence {number} has the id {odd}, and the model has {words} tokens, from 0")
            found.append(ids)
        return shortened(self._vectors(found, 0, normalize=self.normalize), self.truncate_dim)

    def _skipped(self, prompt: str) -> int:
        """Return how many tokens at the beginning of each sequence are not pooled.

        These are the special tokens before the text and those of the prompt. The number is 0 if there is no prompt, if
        prompts are pooled too, or if the last token is pooled.

        Raises:
            OptionError: there is a prompt that must not be pooled (`Texts.include_prompt`), and the pooling is "first".
        """
        if not prompt or self.texts.include_prompt or self.pooling == "last":
            return 0
        if self.pooling == "first":
            raise OptionError(
                "this model pools the first token and does not pool prompts, which versions of sentence-transformers "
                "understand in different ways; give prompt='', or Texts(include_prompt=True)"
            )
        [ids] = self.tokenizer.encode([prompt])
        return prompt_length([*self.tokenizer.prefix, *ids, *self.tokenizer.suffix], self._special)

    def _vectors(
        self,
        sequences: Sequence[NDArray[Any]],
        skip: int,
        *,
        normalize: bool,
        most: int | None = None,
        done: Shown = lambda texts: None,
    ) -> NDArray[np.float32]:
        """Return one vector per sequence of ids, in order; float32 ``[n, H]``.

        A batch has about `budget` tokens at most, and at most `most` sequences (None: any number). After each batch,
        `done` is called with the number of its sequences. The first `skip` tokens of each sequence are not pooled.

        Raises:
            LengthError: a sequence has no token, or more than the model has positions.
            RecordError: the model gives NaN for a sequence.
        """
        limit = _positions(bare(self.model))
        for number, sequence in enumerate(sequences):
            if not len(sequence):
                raise LengthError(f"sequence {number} has no token; leave it out")
            if limit is not None and len(sequence) > limit:
                raise LengthError(
                    f"sequence {number} has {len(sequence)} tokens, and the model has {limit} positions; cut it"
                )
        found: list[Any] = [None] * len(sequences)
        lengths = list(map(len, sequences))
        with evaluated(self.model), self.kernels(sum(lengths)):
            for numbers in by_length(lengths, self.budget, most):
                part = [sequences[number] for number in numbers]
                work = partial(self._vectors_of, part, skip, normalize, sum(lengths))
                vectors = np.stack(self.lanes.run([lengths[number] for number in numbers], work))
                for at in odd_rows(vectors):
                    raise RecordError(f"text {numbers[at]}: the model gives NaN for it; are its weights damaged?")
                for number, vector in zip(numbers, vectors, strict=True):
                    found[number] = vector
                done(len(numbers))
        return np.stack(found) if found else np.zeros((0, width_of(self.model)), np.float32)

    def _vectors_of(
        self, sequences: list[Any], skip: int, normalize: bool, total: int, indices: list[int]
    ) -> Sequence[NDArray[np.float32]]:
        """Return the vectors of the sequences with these `indices`, run as one flat batch; float32 ``[H]`` each.

        `total` is the number of tokens of all sequences that `_vectors` got, for `Core.flat`.
        """
        chosen = [sequences[index] for index in indices]
        with torch.inference_mode():
            batch = PackedBatch.from_sequences(chosen, self.flat(sum(map(len, chosen)), total))
            return list(self._embedded(self.model, batch.to(device_of(self.model)), skip, normalize))

    def _embedded(
        self, model: Any, batch: PackedBatch, skip: int | NDArray[np.int64], normalize: bool
    ) -> NDArray[np.float32]:
        vectors = embed(model, batch, pooling=self.pooling, normalize=normalize, skip=skip)
        found: NDArray[np.float32] = vectors.float().cpu().numpy()
        return found


def _positions(model: Any) -> int | None:
    return positions_of(model, facts_of(model))
