"""Tokens of a text's beginnings: as if each were tokenised by itself, whatever the text and wherever it is cut."""

from __future__ import annotations

import random

import pytest
import transformers
from tests.tasks.tiny import SPECIAL, WORDS, tokenizer
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from nopad.corpus.prefixes import prefix_lengths


def judged(made, text, prefixes):
    """Each prefix tokenised whole."""
    ids = made(text, add_special_tokens=False)["input_ids"]
    found = []
    for prefix in prefixes:
        mine = made(prefix, add_special_tokens=False)["input_ids"]
        found.append(len(mine) if ids[: len(mine)] == mine else None)
    return ids, found


def trained(kind):
    """A small trained tokenizer as GPT-2's, or as Llama 2's."""
    inner = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
    special = ["<unk>", "<s>", "</s>", "<|user|>"]
    if kind == "bytes":
        inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        inner.decoder = decoders.ByteLevel()
    elif kind == "metaspace":
        inner.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    else:
        inner.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=special, show_progress=False)
    inner.train_from_iterator([" ".join(WORDS), "is it so ?\n\nyes\n it is\n\n\nno " * 20, *WORDS] * 5, trainer)
    # One that takes the white space behind it, as Phi-3's do
    inner.add_special_tokens([AddedToken("<|end|>", rstrip=True, special=True)])
    return transformers.PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="</s>", unk_token="<unk>")


@pytest.mark.parametrize("kind", ["words", "bytes", "metaspace", "prepended"])
def test_any_text_cut_anywhere(kind):
    made = tokenizer() if kind == "words" else trained(kind)
    special = set(made.all_special_ids) | set(made.get_added_vocab().values())
    marks = SPECIAL if kind == "words" else ("<s>", "</s>", "<|user|>", "<|end|>")
    generator, ends = random.Random(0), {"none": 0, "some": 0}
    for _ in range(150):
        pieces = [*generator.choices(marks, k=4), *generator.choices(WORDS, k=6), " ", "\n", "\n\n", "  ", "\n"]
        generator.shuffle(pieces)
        text = "".join(pieces) if generator.random() < 0.5 else " ".join(pieces)
        prefixes = [text[: generator.randrange(len(text) + 1)] for _ in range(6)] + [text, ""]
        found = prefix_lengths(made, text, prefixes, special)
        assert found == judged(made, text, prefixes), (text, prefixes)
        for length in found[1]:
            ends["none" if length is None else "some"] += 1
    assert min(ends.values()) > 50


def test_a_slow_tokenizer_gives_the_same(monkeypatch):
    made = tokenizer()
    text, prefixes = "<|user|> is it [EOS] why", ["<|user|> is", "<|user|> is it [EO", ""]
    fast = prefix_lengths(made, text, prefixes, set(made.all_special_ids))
    monkeypatch.setattr(type(made), "is_fast", property(lambda self: False))
    assert prefix_lengths(made, text, prefixes, set()) == fast
