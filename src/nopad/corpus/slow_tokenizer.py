"""Adapt slow tokenizers (written in Python) from transformers to the methods of `tokenizers` that nopad uses."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["SlowBackend", "SlowEncoding"]

# Settings that do not change the token ids
_WHERE_FROM = ("name_or_path", "is_local", "local_files_only", "model_max_length")


@dataclass(frozen=True, slots=True)
class SlowEncoding:
    """The encoding of one text.

    Attributes:
        ids: token ids.
        special_tokens_mask: 1 for each special token that was added around the text, 0 for any other token; [] if it
            was not computed.
    """

    ids: list[int]
    special_tokens_mask: list[int]

    def __len__(self) -> int:
        """Return the number of tokens."""
        return len(self.ids)


class SlowBackend:
    """Adapts a slow tokenizer from transformers; it never truncates and never pads.

    Attributes:
        encode_special_tokens: whether the name of a special token in a text is read as plain text.
    """

    def __init__(self, given: Any) -> None:
        """Wrap the tokenizer without changing it."""
        self._given = given
        self.encode_special_tokens = False  # named as in tokenizers

    def copy(self) -> SlowBackend:
        """Return a new backend of the same tokenizer object; its `encode_special_tokens` is False."""
        return SlowBackend(self._given)

    def no_truncation(self) -> None:
        """Do nothing, since every call turns truncation off."""

    def no_padding(self) -> None:
        """Do nothing, since every call turns padding off."""

    def get_vocab_size(self, with_added_tokens: bool = True) -> int:
        """Return the number of tokens in the vocabulary, added tokens included; `with_added_tokens` has no effect."""
        return len(self._given)

    def get_vocab(self, with_added_tokens: bool = True) -> dict[str, int]:
        """Return the id of each token by its text, added tokens included; `with_added_tokens` has no effect."""
        return dict(self._given.get_vocab())

    def get_added_tokens_decoder(self) -> dict[int, Any]:
        """Return the added tokens by id; each says whether it is ``special``."""
        return dict(self._given.added_tokens_decoder)

    def num_special_tokens_to_add(self, is_pair: bool = False) -> int:
        """Return the number of special tokens added to one text, or with `is_pair` to two texts in one sequence."""
        return int(self._given.num_special_tokens_to_add(is_pair))

    def id_to_token(self, token: int) -> str | None:
        """Return the text of the token with the id `token`; None if the tokenizer has no text for this id."""
        text: str | None = self._given.convert_ids_to_tokens(token)
        return text

    def to_str(self) -> str:
        """Return the tokenizer's class, vocabulary, and settings that may change the ids, as JSON for a fingerprint."""
        settings = {
            name: repr(value)
            for name, value in self._given.init_kwargs.items()
            if value is not None and name not in _WHERE_FROM and "file" not in name
        }
        what = {"class": type(self._given).__name__, "vocabulary": self._given.get_vocab(), "settings": settings}
        return json.dumps(what, sort_keys=True)

    def encode(self, text: str, add_special_tokens: bool = True) -> SlowEncoding:
        """Return the encoding of a text; its mask is 1 for special tokens that the tokenizer adds around the text.

        With `add_special_tokens` False, no special tokens are added, and the mask is 0 everywhere.
        """
        ids = self._call(text, add_special_tokens)
        bare = ids if not add_special_tokens else self._call(text, False)
        inside = len(ids) - len(bare)
        first = next((at for at in range(inside + 1) if ids[at : at + len(bare)] == bare), 0)
        mask = [int(not first <= at < first + len(bare)) for at in range(len(ids))]
        return SlowEncoding(ids, mask)

    def encode_batch_fast(self, texts: Sequence[str], add_special_tokens: bool = True) -> list[SlowEncoding]:
        """Return the encoding of each text, without masks; the texts are encoded one after the other."""
        return [SlowEncoding(self._call(text, add_special_tokens), []) for text in texts]

    def _call(self, text: str, special: bool) -> list[int]:
        how = {"split_special_tokens": True} if self.encode_special_tokens else {}
        found = self._given(text, add_special_tokens=special, truncation=False, padding=False, verbose=False, **how)
        return list(found["input_ids"])
