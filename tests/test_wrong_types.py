"""A public call that is given a value of a wrong type raises an error of nopad, whatever the value is."""

from __future__ import annotations

from dataclasses import MISSING, fields
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tests.tasks.tiny import bert, llama, tokenizer
from transformers import BertConfig, BertModel

import nopad
from nopad.balance import Balance
from nopad.corpus.pretraining import PairOptions
from nopad.errors import NopadError
from nopad.report import Settings
from nopad.tasks import DPO, Classification, Contrastive, Embedder, Predictor, TokenClassification, reference_logprobs

ODD = [
    *(None, True, 0, -1, 2**70, 1.5, float("nan"), "", "abc", b"x", [], [1], [[1]], [None], {}, {"a": 1}, {1, 2}),
    *(np.array([1, 2]), np.array(3.5), np.array([], int), torch.tensor(2.5), torch.empty(2, device="meta")),
    *(object(), int, lambda *given, **more: None, slice(2), np.float32(1.5)),
]
PICTURED = [{"input_ids": [1, 2], "pixel_values": np.zeros((1, 3, 2, 2), np.float32)}, {"input_ids": [3]}]
RECORDS = [{"text": "is it red ?", "label": "x"}, {"text": "yes", "label": "y"}]
ANSWERS = [{"prompt": "is it ?", "chosen": " yes", "rejected": " no no"}]
SEVERAL = {"capacity": 8, "rows": 1, "seed": 0, "groups": None, "together": "rank", "host_dir": None, "last": "short"}


@pytest.fixture(scope="module")
def made():
    judged, compared = Classification(tokenizer(), ["x", "y"]), DPO(tokenizer())
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    base = nopad.packed(BertModel(BertConfig(vocab_size=len(tokenizer()), **sizes)).eval())
    embedder = Embedder(base, tokenizer())
    with nopad.PackRunner(embedder) as runner:
        yield SimpleNamespace(
            judged=judged,
            examples=judged.encode(RECORDS),
            pairs=compared.encode(ANSWERS),
            predictor=Predictor(judged, nopad.packed(bert(judged))),
            causal=nopad.packed(llama(compared)),
            base=base,
            embedder=embedder,
            runner=runner,
        )


def _loaded(**given):
    return list(nopad.PackedLoader(**given))


def _packed(**given):
    nopad.pack_dataset(**{"capacity": 8, **given})


def _defaults(options):
    return {field.name: field.default for field in fields(options) if field.init and field.default is not MISSING}


CALLS = {
    "reference_logprobs": lambda made: (
        reference_logprobs,
        {"model": made.causal, "examples": made.pairs, "capacity": 16, "rows": 1},
    ),
    "loader of a task": lambda made: (made.judged.loader, {"data": made.examples, "capacity": 16, "rows": 1}),
    "loader": lambda made: (_loaded, {"data": [[1, 2], [3]], **SEVERAL}),
    "loader of images": lambda made: (_loaded, {"data": PICTURED, "images": 1, **SEVERAL}),
    "encode": lambda made: (made.judged.encode, {"records": RECORDS, "labels": True}),
    "predictor": lambda made: (made.predictor, {"records": RECORDS}),
    "forward": lambda made: (made.predictor.forward, {"examples": made.examples}),
    "embedder": lambda made: (
        made.embedder.encode,
        {"inputs": ["is it"], "prompt": None, "prompt_name": None, "over_long": "error", "precision": "float32"},
    ),
    "runner": lambda made: (made.runner, {"inputs": ["is it"], "prompt_name": None, "over_long": "error"}),
    "submit": lambda made: (made.runner.submit, {"inputs": "is it", "deadline_s": None, "priority": 0}),
    "new runner": lambda made: (
        lambda **given: nopad.PackRunner(**given).close(),
        {"model": made.base, "widths": "own", "fast": False, "compile": False, "warm_up": False},
    ),
    "plan_several": lambda made: (
        nopad.plan_several,
        {"sizes": [3, 4], "capacities": [8, 4], "prices": [2, 1], "counts": None, "depth": None, "effort": 0},
    ),
    "classes": lambda made: (
        lambda **given: Classification(tokenizer(), **given),
        {"labels": ["x", "y"], "text": "text", "pair": None, "max_length": 8, "over_long": "error"},
    ),
    "tags": lambda made: (lambda **given: TokenClassification(tokenizer(), **given), {"labels": ["O", "B-X"]}),
    "pack_dataset of texts": lambda made: (
        _packed,
        {
            "data": RECORDS,
            "tokenizer": tokenizer(),
            "output": None,
            "text_field": None,
            "text_pair": None,
            "chat": None,
        },
    ),
    "pack_dataset with a task": lambda made: (_packed, {"data": RECORDS, "task": made.judged}),
    "PackOptions": lambda made: (nopad.PackOptions, _defaults(nopad.PackOptions)),
    "ReaderOptions": lambda made: (nopad.ReaderOptions, _defaults(nopad.ReaderOptions)),
    "CorpusOptions": lambda made: (nopad.CorpusOptions, {**_defaults(nopad.CorpusOptions), "capacity": 8}),
    "PairOptions": lambda made: (PairOptions, {**_defaults(PairOptions), "max_length": 64}),
    "Settings": lambda made: (Settings, _defaults(Settings)),
    "Balance": lambda made: (Balance, _defaults(Balance)),
    "Rows": lambda made: (nopad.Rows, {**_defaults(nopad.Rows), "capacity": 8}),
    "Flat": lambda made: (nopad.Flat, _defaults(nopad.Flat)),
    "anchors": lambda made: (
        lambda **given: Contrastive(tokenizer(), **given).encode([{"anchor": "is", "positive": "it"}]),
        {"prompt": "", "positive_prompt": ""},
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_value_of_a_wrong_type_is_refused_or_of_use(name, made, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # folders by a relative name are made
    call, usual = CALLS[name](made)
    call(**usual)
    raw = []
    for argument in usual:
        for odd in ODD:
            try:
                call(**{**usual, argument: odd})
            except NopadError:
                pass
            except Exception as error:  # what is looked for
                raw.append(f"{argument}={odd!r}: {type(error).__name__}: {error}")
    assert not raw
