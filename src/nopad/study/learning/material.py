"""What `nopad study learning` trains on: the texts of Python's standard library, as pairs for pre-training.

Each text is a document. The vocabulary is the part of BERT's that these texts use most, with every single character in
it, so nothing is unknown; a small one keeps a small model from being all embeddings.
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
from nopad.tasks.embedding import _default_folder

__all__ = ["Material", "material", "reduced"]

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
HELD_OUT = 10  # one document in so many


@dataclass(frozen=True, kw_only=True)
class Material:
    """Pairs to train on and pairs held out, and the task that made them.

    Attributes:
        task: masks them, and says what is learned.
        train, held_out: the pairs; no document is in both.
        texts: ``(text, topic)`` of documents, for tuning afterwards; a topic is a package of the standard library.
    """

    task: Pretraining
    train: Sequences
    held_out: Sequences
    texts: list[tuple[str, str]]

    @property
    def capacity(self) -> int:
        """Most tokens of a pair."""
        return int(self.task.max_length)


@cache
def material(capacity: int, vocabulary: int, documents: int | None = None) -> Material:
    """Return pairs of at most `capacity` tokens, of the texts of the standard library.

    Args:
        capacity: most tokens of a pair.
        vocabulary: how many tokens there are, single characters included.
        documents: so many texts only, drawn at random; None: all.

    Raises:
        LengthError: the standard library has too few texts, as where it was installed without its sources.
    """
    found = [(entry["text"], entry["file"].split("/")[0].removesuffix(".py")) for entry in stdlib_texts()]
    found = [(text, topic) for text, topic in found if len(sentences_of(text)) > 1]
    order = list(range(len(found)))
    random.shuffle(order, random.key(0))
    found = [found[at] for at in order[:documents]]
    if len(found) < 100:
        raise LengthError(f"the standard library here has {len(found)} texts of 40 characters; at least 100 are needed")
    task = Pretraining(
        reduced([text for text, _ in found], vocabulary), max_length=capacity, over_long="truncate", text_unit="file"
    )
    last = len(found) // HELD_OUT
    held_out, train = (
        task.encode([{"text": text} for text, _ in part]).sequences for part in (found[:last], found[last:])
    )
    return Material(task=task, train=train, held_out=held_out, texts=found)


def reduced(texts: Sequence[str], size: int) -> Any:
    """Return BERT's tokenizer with only the `size` tokens that `texts` use most, and all characters in them."""
    import tokenizers
    import transformers

    made = tokenizers.Tokenizer.from_file(str(_default_folder() / "tokenizer.json"))
    vocabulary = made.get_vocab()
    counts = np.bincount(np.concatenate(load_tokenizer().encode(texts)), minlength=len(vocabulary))
    used = {token.removeprefix("##") for token, number in vocabulary.items() if counts[number]}
    characters = {character for token in used for character in token}
    single = {token for token in vocabulary if token.removeprefix("##") in characters}
    kept = [*SPECIAL, *sorted(single)]
    usual = sorted(vocabulary.keys() - {*kept}, key=lambda token: (-counts[vocabulary[token]], token))
    kept += usual[: max(size - len(kept), 0)]
    made.model = tokenizers.models.WordPiece({token: at for at, token in enumerate(kept)}, unk_token="[UNK]")
    # its frame of special tokens has their old numbers
    made.post_processor = tokenizers.processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), SPECIAL, strict=True))
    kind: Any = transformers.PreTrainedTokenizerFast
    return kind(tokenizer_object=made, **names)
