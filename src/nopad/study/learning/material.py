"""The training data of `nopad study learning`: pre-training pairs made from texts of Python's standard library.

Each text is a document. The vocabulary is a part of BERT's: the tokens that the texts use most, and every character in
the texts, so that no token is unknown. It is small because most of a small model's parameters would otherwise be
embeddings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from nopad import random
from nopad.corpus import load_tokenizer, stdlib_texts
from nopad.corpus.sentences import sentences_of
from nopad.errors import LengthError
from nopad.sequences import Sequences
from nopad.tasks import Pretraining
from nopad.tasks.folder import default_folder

__all__ = ["Material", "material", "reduced"]

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
HELD_OUT = 10  # one document in so many


@dataclass(frozen=True, kw_only=True)
class Material:
    """Data for pre-training as BERT does it: pairs of text segments, and the task that made them.

    Attributes:
        task: the pre-training task, which made the pairs and masks them.
        train, held_out: the pairs to train on and the pairs held out; no document is in both.
        texts: ``(text, topic)`` of each document, for fine-tuning afterwards; a topic is the name of a top-level module
            or package of the standard library.
    """

    task: Pretraining
    train: Sequences
    held_out: Sequences
    texts: list[tuple[str, str]]

    @property
    def capacity(self) -> int:
        """Most tokens in a pair."""
        return int(self.task.max_length)


@cache
def material(capacity: int, vocabulary: int, documents: int | None = None) -> Material:
    """Return the `Material` made from the texts of the standard library, with pairs of at most `capacity` tokens.

    Only texts of at least two sentences are used. Calls with the same arguments return the same object.

    Args:
        capacity: most tokens in a pair.
        vocabulary: number of tokens in the tokenizer's vocabulary, single characters and special tokens included; if
            these alone are more, it has all of them and nothing else.
        documents: number of texts to use, drawn at random; None: all.

    Raises:
        LengthError: `documents` is below 100, or fewer than 100 texts were found, as in a standard library without
            sources.
    """
    found = [(entry["text"], entry["file"].split("/")[0].removesuffix(".py")) for entry in stdlib_texts()]
    found = [(text, topic) for text, topic in found if len(sentences_of(text)) > 1]
    order = list(range(len(found)))
    random.shuffle(order, random.key(0))
    found = [found[at] for at in order[:documents]]
    if len(found) < 100:
        raise LengthError(f"{len(found)} texts of two sentences or more are too few; at least 100 are needed")
    task = Pretraining(reduced([text for text, _ in found], vocabulary), max_length=capacity, over_long="truncate")
    last = len(found) // HELD_OUT
    held_out, train = (
        task.encode([{"text": text} for text, _ in part]).sequences for part in (found[:last], found[last:])
    )
    return Material(task=task, train=train, held_out=held_out, texts=found)


def reduced(texts: Sequence[str], size: int) -> Any:
    """Return BERT's tokenizer with a vocabulary reduced to `size` tokens.

    All special tokens are kept, and all single characters that occur in the tokens of `texts`. If these are fewer than
    `size`, the tokens that `texts` use most are added. If they are more than `size`, the vocabulary is larger than
    `size`.
    """
    import tokenizers
    import transformers

    made = tokenizers.Tokenizer.from_file(str(default_folder() / "tokenizer.json"))
    vocabulary = made.get_vocab()
    counts = np.bincount(np.concatenate(load_tokenizer().encode(texts)), minlength=len(vocabulary))
    used = {token.removeprefix("##") for token, number in vocabulary.items() if counts[number]}
    characters = {character for token in used for character in token}
    single = {token for token in vocabulary if token.removeprefix("##") in characters}
    kept = [*SPECIAL, *sorted(single)]
    usual = sorted(vocabulary.keys() - {*kept}, key=lambda token: (-counts[vocabulary[token]], token))
    kept += usual[: max(size - len(kept), 0)]
    made.model = tokenizers.models.WordPiece({token: at for at, token in enumerate(kept)}, unk_token="[UNK]")
    # the old post-processor has the special tokens' ids in the full vocabulary
    made.post_processor = tokenizers.processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), SPECIAL, strict=True))
    kind: Any = transformers.PreTrainedTokenizerFast
    return kind(tokenizer_object=made, **names)
