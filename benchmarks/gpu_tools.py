"""What `gpu.py` measures with: the device and its facts, pinned kernels, the kernel called by hand, times and memory.

Without a GPU (`--device cpu --tiny`, as the tests run it) everything here has a stand-in, and says so.
"""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
import transformers
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from nopad.model.backends.varlen import on_kernel

BY_HAND = "by_hand"
# Dense TFLOP/s in half precision by name, as their makers say them; the first name that is part of the device's counts
PEAKS = {
    "B200": 2250,
    "H200": 989,
    "H100 PCIe": 756,
    "H100": 989,
    "A100": 312,
    "L40S": 362,
    "L4": 121,
    "A10": 125,
    "RTX 4090": 165,
    "RTX 3090": 71,
    "V100": 125,
    "T4": 65,
}
PINNED = {"efficient": SDPBackend.EFFICIENT_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION, "math": SDPBackend.MATH}
KERNELS = re.compile(r"flash|fmha|cudnn|attention|flex|triton_tem", re.IGNORECASE)


@dataclass(frozen=True)
class Device:
    """Where it runs.

    Attributes:
        kind: "cuda" or "cpu".
        half: the dtype of the measurements: bfloat16, or float16 where there is none; float32 on a CPU.
        kernel: PyTorch's variable-length kernel, or its stand-in.
    """

    kind: str
    half: torch.dtype
    kernel: Callable[..., Any]
    name: str = "cpu"
    peak: float = 0.0

    @property
    def gpu(self) -> bool:
        return self.kind == "cuda"

    def wait(self) -> None:
        if self.gpu:
            torch.cuda.synchronize()


def find(kind: str) -> Device:
    """Return the device; ends the program, saying why, where there is none."""
    if kind == "cpu":
        return Device("cpu", torch.float32, stand_in)
    if not torch.cuda.is_available():
        raise SystemExit(
            "There is no CUDA device here, so nothing was measured. `--device cpu --tiny` runs every line at toy sizes, "
            "without a GPU; its numbers say nothing."
        )
    name = torch.cuda.get_device_name()
    bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
    kernel: Callable[..., Any] = stand_in
    if on_kernel(torch.device("cuda")):
        from torch.nn.attention.varlen import varlen_attn as kernel
    peak = next((peak for part, peak in PEAKS.items() if part in name), 0)
    return Device("cuda", torch.bfloat16 if bf16 else torch.float16, kernel, name, peak * 1e12)


def facts(device: Device, tiny: bool) -> None:
    """Print what it runs on."""
    print(
        f"torch {torch.__version__}, transformers {transformers.__version__}, {device.name}, {device.half}", flush=True
    )
    if not device.gpu:
        print("NO GPU WAS HERE: toy sizes on a CPU, whose numbers say nothing" if tiny else "on a CPU")
        return
    free, total = torch.cuda.mem_get_info()
    major, minor = torch.cuda.get_device_capability()
    print(
        f"CUDA {torch.version.cuda}, compute capability {major}.{minor}, {total / 2**30:.0f} GiB ({free / 2**30:.0f} free), "
        f"{torch.backends.cudnn.version()} of cuDNN, float32 matmul precision {torch.get_float32_matmul_precision()!r}"
    )
    if device.half is torch.float16:
        print("this GPU has no bfloat16: float16 is measured, and its audits are of float16")
    if device.kernel is stand_in:
        print(
            "PyTorch's variable-length kernel takes torch 2.11 and, of NVIDIA's GPUs, compute capability 8.0 or later:"
        )
        print("one SDPA per sequence is measured in its place, and nothing here says anything about the kernel")


def matmul_rate(device: Device, size: int) -> float:
    """Return the FLOP/s of one large matrix product, the most that the device gives in practice."""
    a, b = (torch.randn(size, size, device=device.kind, dtype=device.half) for _ in range(2))
    seconds = min(Timer(device).seconds(lambda: a @ b, 5))
    return 2 * size**3 / seconds


@dataclass
class Timer:
    """Seconds of calls, on the device's own clock; memory at their peak."""

    device: Device
    memory: int = 0

    def seconds(self, call: Callable[[], Any], repeats: int, before: Callable[[], Any] | None = None) -> list[float]:
        """Return the seconds of each of `repeats` calls, after one that warms up; `before` each is not timed."""
        found = []
        for turn in range(repeats + 1):
            if before is not None:
                before()
            self.device.wait()
            if turn == 1 and self.device.gpu:
                torch.cuda.reset_peak_memory_stats()
            start = time.perf_counter()
            call()
            self.device.wait()
            if turn:
                found.append(time.perf_counter() - start)
        self.memory = torch.cuda.max_memory_allocated() if self.device.gpu else 0
        return found


@dataclass
class Row:
    """One way of running the same sequences.

    Attributes:
        said: why there are no numbers; "": there are.
    """

    name: str
    seconds: float = 0.0
    memory: int = 0
    kernel: str = ""
    said: str = ""


@dataclass
class Clock:
    """The time that is left of all that the benchmark may take."""

    minutes: float
    start: float = field(default_factory=time.perf_counter)

    def over(self, share: float) -> bool:
        """Whether more than this share of the time is gone."""
        return time.perf_counter() - self.start > 60 * self.minutes * share


def measured(
    device: Device,
    name: str,
    step: Callable[[Any], Any],
    fresh: Callable[[], list[Any]],
    repeats: int,
    pin: str = "",
) -> Row:
    """Time `step` on each batch of `fresh()`, which makes new ones, as an epoch has them; with one kernel pinned.

    What a device or a library cannot do becomes a row that says so.
    """
    row, timer = Row(name), Timer(device)
    batches: list[Any] = []

    def renew() -> None:
        batches[:] = fresh()

    def run() -> None:
        for batch in batches:
            step(batch)

    try:
        with pinned(pin if device.gpu else ""):
            found = timer.seconds(run, repeats, renew)
            row.seconds, row.memory = statistics.median(found), timer.memory
            looked = device.gpu or name == BY_HAND  # once is enough where nothing depends on it
            row.kernel = kernel_of(device, lambda: step(batches[0])) if looked else "(looked for on a GPU)"
    except torch.OutOfMemoryError:
        row.said = "out of memory"
    except (RuntimeError, ImportError, ValueError, NotImplementedError) as error:
        row.said = f"not here: {' '.join(str(error).split())[:100]}"
    if device.gpu:
        torch.cuda.empty_cache()
    return row


@contextmanager
def pinned(name: str) -> Iterator[None]:
    """Inside this context SDPA may use one kernel only; "": whichever it chooses."""
    with sdpa_kernel([PINNED[name]]) if name else nullcontext():
        yield


def kernel_of(device: Device, step: Callable[[], Any]) -> str:
    """Return the name of the attention kernel that one step spent most time in."""
    from torch.profiler import ProfilerActivity, profile

    kind = ProfilerActivity.CUDA if device.gpu else ProfilerActivity.CPU
    with profile(activities=[kind]) as seen:
        step()
        device.wait()
    spent = {
        event.key: event.self_device_time_total if device.gpu else event.self_cpu_time_total
        for event in seen.key_averages()
        if KERNELS.search(event.key) and (device.gpu or event.key.startswith("aten::"))  # no node of autograd
    }
    return max(spent, key=lambda name: spent[name], default="none by that name")


def stand_in(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_q: torch.Tensor,
    cu_k: torch.Tensor,
    max_q: int,
    max_k: int,
    *,
    scale: float | None = None,
    window_size: tuple[int, int] = (-1, -1),
) -> torch.Tensor:
    """Compute what `varlen_attn` does, by one SDPA per sequence, where there is no such kernel."""
    out = []
    for begin, end in pairwise(cu_q.tolist()):
        one = (states[begin:end].transpose(0, 1)[None] for states in (q, k, v))
        found = scaled_dot_product_attention(*one, scale=scale, is_causal=window_size == (-1, 0))
        out.append(found[0].transpose(0, 1))
    return torch.cat(out)


class ByHand:
    """Attention that calls the kernel and nothing else: a stock model on it is what nopad is held against."""

    def __init__(self, kernel: Callable[..., Any]) -> None:
        self.kernel, self.cu, self.longest = kernel, torch.zeros(2, dtype=torch.int32), 0
        transformers.AttentionInterface.register(BY_HAND, self)

    def __call__(
        self,
        module: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: Any,
        scaling: float | None = None,
        **_: Any,
    ) -> tuple[torch.Tensor, None]:
        """Queries, keys and values ``[1, H, T, D]``; `attention_mask` is a placeholder."""
        q, k, v = (states[0].transpose(0, 1) for states in (query, key, value))
        groups = q.shape[1] // k.shape[1]
        if groups > 1:
            k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
        window = (-1, 0) if module.is_causal else (-1, -1)
        found = self.kernel(q, k, v, self.cu, self.cu, self.longest, self.longest, scale=scaling, window_size=window)
        return found[None], None
