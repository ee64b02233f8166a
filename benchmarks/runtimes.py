"""Outside yardsticks for `model.py` and `serve_offline.py`: an encoder in OpenVINO and ONNX Runtime, on padded batches.

In float32; OpenVINO also in bfloat16, ONNX Runtime also with dynamically quantised int8 linear layers. Both want `pip install --group bench`; what is missing is named, and the rest is measured.
"""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

Runtime = Callable[[np.ndarray, np.ndarray], Any]
NEEDS = {"OpenVINO": ("openvino",), "ONNX Runtime": ("onnxruntime", "onnx", "onnxscript")}


class _States(nn.Module):
    """An encoder as a function of two tensors."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        states: Tensor = self.model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        return states


def missing(name: str) -> str | None:
    """Return the packages that a runtime wants and that are not installed; None: it can run."""
    absent = [package for package in NEEDS.get(name, ()) if importlib.util.find_spec(package) is None]
    return ", ".join(absent) or None


def openvino(model: nn.Module, threads: int, precision: str = "f32") -> Runtime:
    """Compile for this CPU, lengths and batch sizes left open; `precision` is "f32" or "bf16"."""
    import openvino as ov

    example = {"input_ids": torch.ones(2, 8, dtype=torch.long), "attention_mask": torch.ones(2, 8, dtype=torch.long)}
    converted = ov.convert_model(_States(model).eval(), example_input=example)
    settings = {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": precision, "PERFORMANCE_HINT": "LATENCY"}
    compiled = ov.Core().compile_model(converted, "CPU", settings)
    return lambda ids, mask: compiled({"input_ids": ids, "attention_mask": mask})[0]


def onnx_runtime(model: nn.Module, threads: int, int8: bool = False) -> Runtime:
    """Export with open lengths and batch sizes, and run with all optimisations; `int8`: linear layers in int8."""
    import onnxruntime

    example = (torch.ones(2, 8, dtype=torch.long), torch.ones(2, 8, dtype=torch.long))
    open_sizes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("length")}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        shapes = {"input_ids": open_sizes, "attention_mask": open_sizes}
        how = {"dynamo": True, "dynamic_shapes": shapes, "verbose": False, "external_data": False}
        torch.onnx.export(_States(model).eval(), example, str(path), **how)
        if int8:
            path = quantised(path)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [one.name for one in session.get_inputs()]
    return lambda ids, mask: session.run(None, dict(zip(names, (ids, mask), strict=True)))[0]


def quantised(path: Path) -> Path:
    """Write a copy of an ONNX file whose weights of linear layers are int8; activations are rounded as they come."""
    from onnxruntime.quantization import QuantType, quantize_dynamic
    from onnxruntime.quantization.shape_inference import quant_pre_process

    ready, made = path.with_name("ready.onnx"), path.with_name("int8.onnx")
    quant_pre_process(str(path), str(ready), skip_symbolic_shape=True)
    how = {"MatMulConstBOnly": True}  # not products of two activations, as in attention
    quantize_dynamic(str(ready), str(made), weight_type=QuantType.QInt8, per_channel=True, extra_options=how)
    return made


MAKERS = {"OpenVINO": openvino, "ONNX Runtime": onnx_runtime}


def runtimes(model: nn.Module, threads: int) -> Iterator[tuple[str, Runtime | str]]:
    """Give (name, runtime), or (name, why there is none)."""
    for name, make in MAKERS.items():
        absent = missing(name)
        if absent is not None:
            yield name, f"not installed: {absent}"
            continue
        runtime = make(model, threads)
        ids = torch.randint(1000, 20_000, (3, 20))
        mask = torch.ones_like(ids)
        mask[0, 11:] = 0
        with torch.inference_mode():
            wanted = _States(model)(ids, mask)
        worst = float(np.abs(runtime(ids.numpy(), mask.numpy()) - wanted.numpy())[mask.numpy() > 0].max())
        yield name, runtime if worst < 1e-3 else f"differs from PyTorch by {worst:.1e}"
