"""The other libraries of `serve_offline.py`, as functions from texts to vectors; what is not installed is named."""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from runtimes import missing, onnx_runtime, openvino

BATCH, LONGEST = 32, 256
Way = Callable[[list[str]], np.ndarray]
States = Callable[[Any, Any], Any]


def batches(items: list[Any], size: int = BATCH) -> Iterator[list[Any]]:
    for first in range(0, len(items), size):
        yield items[first : first + size]


class Padded:
    """Batches of texts padded to the longest of each, by anything that gives hidden states for (ids, mask)."""

    def __init__(self, tokenizer: Any, states: States, *, by_length: bool = False, batch: int = BATCH):
        self.tokenizer, self.states, self.by_length, self.batch = tokenizer, states, by_length, batch

    def __call__(self, texts: list[str]) -> np.ndarray:
        ids = self.tokenizer(texts, truncation=True, max_length=LONGEST)["input_ids"]
        order = sorted(range(len(ids)), key=lambda at: len(ids[at])) if self.by_length else range(len(ids))
        found: list[Any] = [None] * len(ids)
        for part in batches(list(order), self.batch):
            padded = self.tokenizer.pad({"input_ids": [ids[at] for at in part]}, return_tensors="np")
            tokens, mask = padded["input_ids"].astype(np.int64), padded["attention_mask"].astype(np.int64)
            states = np.asarray(self.states(tokens, mask))
            mean = (states * mask[..., None]).sum(1) / mask.sum(1, keepdims=True)
            for at, vector in zip(part, mean / np.linalg.norm(mean, axis=1, keepdims=True), strict=True):
                found[at] = vector
        return np.array(found)


def by_torch(model: Any) -> States:
    def states(ids: Any, mask: Any) -> Any:
        with torch.inference_mode():
            given = {"input_ids": torch.from_numpy(ids), "attention_mask": torch.from_numpy(mask)}
            return model(**given).last_hidden_state.float().numpy()

    return states


def by_sentence_transformers(folder: Path, dtype: torch.dtype = torch.float32) -> Way:
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(folder), device="cpu", model_kwargs={"dtype": dtype})
    model.max_seq_length = LONGEST
    return lambda texts: model.encode(texts, batch_size=BATCH, normalize_embeddings=True)


def by_ctranslate2(folder: Path, kind: str = "float32") -> States:
    import ctranslate2

    with tempfile.TemporaryDirectory() as target:
        ctranslate2.converters.TransformersConverter(str(folder)).convert(target, force=True)
        encoder = ctranslate2.Encoder(target, device="cpu", compute_type=kind, intra_threads=torch.get_num_threads())

    def states(ids: Any, mask: Any) -> Any:
        rows = [row[: int(kept)].tolist() for row, kept in zip(ids, mask.sum(1), strict=True)]
        found = encoder.forward_batch(rows).last_hidden_state
        return found.to(ctranslate2.DataType.float32) if kind == "bfloat16" else found

    return states


def peers(
    precision: str, folder: Path, stock: Any, tokenizer: Any, *, few: bool = False
) -> Iterator[tuple[str, Way | str]]:
    """Give (name, way), or (name, why it is left out), of each library in one class of precision.

    If there are `few` texts, runtimes also run them one by one: sorting so few leaves more padding.
    """
    threads = torch.get_num_threads()
    sorted_ = partial(Padded, tokenizer, by_length=True)
    runs: dict[str, Callable[[], States]]
    if precision == "float32":
        yield tried("sentence-transformers encode", lambda: by_sentence_transformers(folder))
        yield tried("CTranslate2, sorted", lambda: sorted_(by_ctranslate2(folder)))
        runs = {"OpenVINO": lambda: openvino(stock, threads), "ONNX Runtime": lambda: onnx_runtime(stock, threads)}
    elif precision == "bfloat16":
        yield tried("sentence-transformers encode", lambda: by_sentence_transformers(folder, torch.bfloat16))
        yield tried("CTranslate2, sorted", lambda: sorted_(by_ctranslate2(folder, "bfloat16")))
        runs = {"OpenVINO": lambda: openvino(stock, threads, "bf16")}
    else:
        yield tried("CTranslate2, sorted", lambda: sorted_(by_ctranslate2(folder, "int8")))
        runs = {"ONNX Runtime": lambda: onnx_runtime(stock, threads, int8=True)}
    for name, make in runs.items():
        if absent := missing(name):
            yield name, f"not installed: {absent}"
            continue
        _, states = tried(name, make)
        if isinstance(states, str):
            yield name, states
            continue
        yield f"{name}, sorted", sorted_(states)
        if few:
            yield f"{name}, one by one", Padded(tokenizer, states, batch=1)


def tried(name: str, make: Callable[[], Any]) -> tuple[str, Any]:
    """Return (name, what is made), or (name, why it is left out)."""
    try:
        return name, make()
    except ModuleNotFoundError as error:
        return name, f"not installed: {error.name}"
    except Exception as error:
        return name, f"{type(error).__name__}: {str(error).splitlines()[0][:90]}"


def cross_encoder(folder: Path, classes: int) -> Callable[[list[Any]], np.ndarray] | str:
    """Return what gives the scores of pairs, or the probabilities of their classes; or why it is left out."""
    if not importlib.util.find_spec("sentence_transformers"):
        return "not installed: sentence_transformers"
    from sentence_transformers import CrossEncoder

    model = CrossEncoder(str(folder), device="cpu", max_length=LONGEST)
    how = {"apply_softmax": True} if classes > 1 else {"activation_fn": torch.nn.Identity()}
    return lambda pairs: model.predict(pairs, batch_size=BATCH, **how)
