"""A tokenizer's fingerprint changes with whatever changes what it makes of a record, and with nothing else."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from tests.tasks.tiny import tokenizer

from nopad.tasks.fingerprints import tokenizer_fingerprint

CHANGES = {
    "chat template": {"chat_template": "{{ messages[0] }}"},
    "token types": {"model_input_names": ["input_ids"]},
    "a special token": {"eos_token": "[SEP]"},
    "another class of padding": {"pad_token": "[MASK]"},
    "names of special tokens that are plain text": {"split_special_tokens": True},
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_what_changes_sequences_changes_the_fingerprint(change):
    made = tokenizer()
    before = tokenizer_fingerprint(made)
    assert before == tokenizer_fingerprint(tokenizer())
    for name, value in change.items():
        setattr(made, name, value)
    assert tokenizer_fingerprint(made) != before


def test_the_settings_of_a_call_do_not():
    made = tokenizer()
    before = tokenizer_fingerprint(made)
    made(["the cat", "why"], truncation=True, max_length=3, padding=True)
    assert tokenizer_fingerprint(made) == before


@pytest.mark.parametrize("lowered", [True, False])
def test_a_slow_tokenizer_is_known_by_its_settings(tmp_path, lowered):
    from transformers.models.bertweet.tokenization_bertweet import BertweetTokenizer

    (tmp_path / "vocab.txt").write_text("the 3\n")
    (tmp_path / "codes").write_text("#version: 0.2\nt h 3\n")
    made = [
        BertweetTokenizer(str(tmp_path / "vocab.txt"), str(tmp_path / "codes"), normalization=one)
        for one in (lowered, True)
    ]
    assert (tokenizer_fingerprint(made[0]) == tokenizer_fingerprint(made[1])) is lowered
