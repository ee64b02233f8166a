"""The other libraries of `serve_offline.py`, as functions from texts to vectors; what is not installed is named."""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from runtimes import missing, onnx_runtime, openvino

BATCH, LONGEST = 32, 256
MODES = {"sorted, 32 at a time": BATCH, "sorted, 8 at a time": 8, "one by one": 1}
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


def by_sentence_transformers(folder: Path, dtype: torch.dtype = torch.float32) -> Callable[[int], Way]:
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(folder), device="cpu", model_kwargs={"dtype": dtype})
    model.max_seq_length = LONGEST
    return lambda size: lambda texts: model.encode(texts, batch_size=size, normalize_embeddings=True)


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


def peers(precision: str, folder: Path, stock: Any, tokenizer: Any) -> Iterator[tuple[str, dict[str, Way] | str]]:
    """Give (name, ways to run it, by mode), or (name, why it is left out), of each library in one class of precision.

    The modes are batches of 32 or 8 texts sorted by length, and one text after the other.
    """
    threads, own = torch.get_num_threads(), {"float32": torch.float32, "bfloat16": torch.bfloat16}
    if precision in own:
        name, made = tried("sentence-transformers", lambda: by_sentence_transformers(folder, own[precision]))
        yield name, made if isinstance(made, str) else {mode: made(size) for mode, size in MODES.items()}
    runs: dict[str, Callable[[], States]] = {"CTranslate2": lambda: by_ctranslate2(folder, precision)}
    if precision != "int8":
        kind = {"float32": "f32", "bfloat16": "bf16"}[precision]
        runs["OpenVINO"] = lambda: openvino(stock, threads, kind)
    if precision != "bfloat16":
        runs["ONNX Runtime"] = lambda: onnx_runtime(stock, threads, int8=precision == "int8")
    for name, make in runs.items():
        if absent := missing(name):
            yield name, f"not installed: {absent}"
            continue
        _, states = tried(name, make)
        if isinstance(states, str):
            yield name, states
            continue
        yield name, {mode: Padded(tokenizer, states, by_length=True, batch=size) for mode, size in MODES.items()}


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
