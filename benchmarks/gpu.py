"""nopad on a GPU, in under ten minutes: first that it is right, then how fast it is beside the kernel called by hand.

    python benchmarks/gpu.py                       # all of it, on an NVIDIA GPU
    python benchmarks/gpu.py audit bert            # parts: audit, bert, graphs, causal
    python benchmarks/gpu.py --device cpu --tiny   # every line at toy sizes, without a GPU; the numbers say nothing

`audit`: BERT's, Llama's and ModernBERT's layers by every backend, in float32 and half precision, against each sequence
alone. `bert`: BERT-large, forward and backward, on lengths like Wikipedia's: padded, and on packs by `mask`, `flex`,
`varlen`, transformers' own flash attention where it is installed, and a stock model whose attention is PyTorch's
variable-length kernel called by hand. `graphs`: rows of static shapes, replayed as CUDA graphs. `causal`: a Llama of a
billion parameters at 4,096 and 32,768 tokens, with gradient checkpointing (which model FLOPs do not count). Needs torch
from 2.11, transformers from 5.9, and nopad's own dependencies.

Each row says which attention kernel ran; SDPA's is pinned, since its own choice may be several times slower. MFU is
model FLOPs of real tokens (padding counts as nothing) over the most that the device's maker names. Goal: nopad's
`varlen` at >= 0.95 of the kernel called by hand.
"""

from __future__ import annotations

import argparse
import logging
import warnings
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from itertools import product
from typing import Any

import numpy as np
import torch
import transformers
from gpu_tools import BY_HAND, ByHand, Clock, Device, Row, facts, find, matmul_rate, measured, pinned, stand_in
from inputs import lognormal

import nopad
from nopad import Flat, PackedBatch, Rows
from nopad.auditing.subject import room_to_compile
from nopad.model import static_inputs

GOAL = 0.95
QUIET = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}  # the kernels know no dropout
LARGE = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
BILLION = {
    "hidden_size": 2048,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 8192,
    "vocab_size": 32_000,
    "max_position_embeddings": 32_768,
}
SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
AUDITED = {**SMALL, "hidden_size": 128, "intermediate_size": 256, "vocab_size": 512}  # heads of 64
BACKENDS = ("auto", "varlen", "mask", "segments", "repack", "flex")  # flex last: it compiles

Step = Callable[[Any], Any]


class Work:
    """Sequences, and the ways to run them through one model forward and backward.

    Attributes:
        lengths: of the sequences.
        capacity: tokens of a row; of a flat batch, this times `rows`.
    """

    def __init__(self, device: Device, model: Any, lengths: np.ndarray, capacity: int, rows: int) -> None:
        self.device, self.model, self.lengths, self.capacity, self.rows = device, model, lengths, capacity, rows
        self.repeats = 3 if device.gpu else 1
        vocabulary = model.config.vocab_size
        rng = np.random.default_rng(0)
        self.sequences = [rng.integers(5, vocabulary, size=n) for n in lengths.tolist()]
        packs = nopad.pack(lengths, capacity, order="source")
        self.packs = [packs[at].tolist() for at in range(len(packs))]
        self.hand = ByHand(device.kernel)

    @property
    def tokens(self) -> int:
        return int(self.lengths.sum())

    def flops(self) -> float:
        """Model FLOPs of real tokens, forward and backward: linear layers, and attention within sequences."""
        model, config = self.model, self.model.config
        inside = sum(p.numel() for name, p in model.named_parameters() if p.dim() == 2 and "embed" not in name)
        causal = 2 if getattr(config, "is_decoder", False) or config.model_type == "llama" else 1
        squares = int((self.lengths.astype(np.int64) ** 2).sum())
        return 3.0 * (2 * inside * self.tokens + 4 * squares * config.hidden_size * config.num_hidden_layers / causal)

    def padded(self) -> list[dict[str, torch.Tensor]]:
        """All sequences in their order, as many to a batch as there are rows, padded to the capacity."""
        found = []
        for at in range(0, len(self.sequences), self.rows):
            part = self.sequences[at : at + self.rows]
            ids = torch.zeros(len(part), self.capacity, dtype=torch.long)
            for row, one in enumerate(part):
                ids[row, : len(one)] = torch.from_numpy(one)
            found.append(
                {"input_ids": ids.to(self.device.kind), "attention_mask": (ids > 0).long().to(self.device.kind)}
            )
        return found

    def packed(self, flat: bool) -> list[PackedBatch]:
        """Packs, as many to a batch as there are rows: as one stream, or as rows."""
        found = []
        for at in range(0, len(self.packs), self.rows):
            part = self.packs[at : at + self.rows]
            lists = [self.sequences[number] for pack in part for number in pack]
            if flat:
                found.append(PackedBatch.from_sequences(lists, Flat()).to(self.device.kind))
                continue
            sizes = np.array([len(pack) for pack in part])
            packs = nopad.Packs(
                indptr=np.concatenate([[0], sizes.cumsum()]).astype(np.int64),
                sequence=np.arange(len(lists), dtype=np.int32),
                capacity=self.capacity,
                depth=None,
            )
            found.append(PackedBatch.from_sequences(lists, Rows(packs=packs, rows=self.rows)).to(self.device.kind))
        return found

    def by_hand(self) -> list[dict[str, Any]]:
        """The streams once more, for the kernel called by hand: what it takes is on the device beforehand."""
        found = []
        for batch in self.packed(True):
            cu = torch.from_numpy(batch.cu_seqlens).to(self.device.kind)
            blank = torch.zeros(1, 1, 1, 1, device=self.device.kind)  # of four dimensions, so it is passed on as it is
            inputs = {"input_ids": batch["input_ids"], "position_ids": batch["position_ids"], "attention_mask": blank}
            found.append({"cu": cu, "longest": batch.max_seqlen, "inputs": _free(inputs)})
        return found

    def step(self, inputs: Any) -> None:
        """One step forward and backward, from given gradients of the states."""
        states = self.model(**inputs).last_hidden_state
        states.backward(torch.ones_like(states))
        self.model.zero_grad(set_to_none=True)

    def step_by_hand(self, batch: dict[str, Any]) -> None:
        """The same, with the kernel called by hand."""
        self.hand.cu, self.hand.longest = batch["cu"], batch["longest"]
        self.step(batch["inputs"])

    def run(self, name: str, pin: str = "") -> Row:
        """Measure one way by its name."""
        title = f"{name}, {pin}" if pin else name
        if name == "varlen" and self.device.kernel is stand_in:
            name, title = "segments", "varlen (segments in its place)"
        step, make = self.step, partial(self.packed, name in ("segments", "varlen"))
        if name == "padded":
            kind, make = "sdpa", self.padded
        elif name == BY_HAND:
            kind, step, make = BY_HAND, self.step_by_hand, self.by_hand
        else:
            kind, make = (name, self._flash) if name.startswith("flash") else ("sdpa", make)
        try:
            self.model.set_attn_implementation(kind)
        except (ImportError, ValueError) as error:  # flash attention that does not fit this GPU
            return Row(title, said=f"not here: {' '.join(str(error).split())[:100]}")
        if name not in BACKENDS:
            return measured(self.device, title, step, make, self.repeats, pin)
        nopad.packed(self.model, backend=name)
        try:
            return measured(self.device, title, step, make, self.repeats, pin)
        finally:
            nopad.unpacked(self.model)

    def _flash(self) -> list[dict[str, Any]]:
        return [_free(batch.as_flash_kwargs()) for batch in self.packed(True)]

    def same(self) -> float:
        """Return how far nopad's states are from those of the kernel called by hand, of the largest.

        Both calls keep gradients, as steps do: inference on a CPU runs on another kernel, which rounds otherwise.
        """
        hand = self.by_hand()[0]
        self.model.set_attn_implementation(BY_HAND)
        self.hand.cu, self.hand.longest = hand["cu"], hand["longest"]
        wanted = self.model(**hand["inputs"]).last_hidden_state.detach()
        self.model.set_attn_implementation("sdpa")
        nopad.packed(self.model)
        found = self.model(**self.packed(True)[0]).last_hidden_state.detach()
        nopad.unpacked(self.model)
        return float((found - wanted).abs().max() / wanted.abs().max())


def _free(inputs: dict[str, Any]) -> dict[str, Any]:
    """Return copies of tensors that no longer know of the packed batch that they were made for."""
    return {name: one.clone() if isinstance(one, torch.Tensor) else one for name, one in inputs.items()}


def table(work: Work, rows: list[Row]) -> None:
    """Print the rows, each beside the kernel called by hand, and whether the goal is met."""
    anchor = next((row.seconds for row in rows if row.name == BY_HAND and not row.said), 0.0)
    slots = len(work.lengths) * work.capacity
    print(f"  {len(work.lengths)} sequences of {work.lengths.min()} to {work.lengths.max()} tokens,", end=" ")
    print(f"{work.tokens:,} in all: {1 - work.tokens / slots:.1%} padding, packing factor", end=" ")
    print(f"{len(work.lengths) / len(work.packs):.2f}")
    print(f"  {'':<34}{'sequences/s':>12}{'tokens/s':>12}{'MFU':>7}{'memory':>10}{'by hand':>9}  attention kernel")
    for row in rows:
        if row.said:
            print(f"  {row.name:<34}{row.said}")
            continue
        mfu = f"{work.flops() / row.seconds / work.device.peak:.1%}" if work.device.peak else "-"
        beside = f"{anchor / row.seconds:.2f}" if anchor else "-"
        print(
            f"  {row.name:<34}{len(work.lengths) / row.seconds:>12,.1f}{work.tokens / row.seconds:>12,.0f}{mfu:>7}"
            f"{row.memory / 2**30:>6.1f} GiB{beside:>9}  {row.kernel[:60]}"
        )
    ours = next((row for row in rows if row.name.startswith("varlen") and not row.said), None)
    if ours is not None and anchor:
        ratio = anchor / ours.seconds
        said = "met" if ratio >= GOAL else "NOT MET"
        print(f"  varlen / by hand = {ratio:.3f} (goal {GOAL}): {said if work.device.gpu else 'says nothing here'}")


def audits(device: Device, clock: Clock, tiny: bool) -> None:
    """Audit every backend, in float32 and in half precision."""
    kinds = {
        "BERT": lambda: transformers.BertModel(transformers.BertConfig(**AUDITED, **QUIET)),
        "Llama": lambda: transformers.LlamaModel(transformers.LlamaConfig(**AUDITED, num_key_value_heads=1)),
        "ModernBERT": lambda: transformers.ModernBertModel(
            transformers.ModernBertConfig(**{**AUDITED, "num_hidden_layers": 3}, **dict.fromkeys(IDS, 0))
        ),
    }
    failures = 0
    for backend, kind, dtype in product(
        BACKENDS, list(kinds)[: 1 if tiny else None], dict.fromkeys((device.half, torch.float32))
    ):
        if clock.over(0.4):
            print(f"  {kind} {dtype} {backend}: left out, 40 % of the time is gone")
            continue
        torch.manual_seed(0)
        with room_to_compile():  # flex compiles for each shape
            failures += _one_audit(device, kind, kinds[kind]().to(device.kind, dtype), backend)
    print(f"  {failures} of the audits failed" if failures else "  every audit passed", flush=True)


IDS = tuple(f"{name}_token_id" for name in ("pad", "bos", "eos", "cls", "sep"))


def _one_audit(device: Device, kind: str, model: Any, backend: str) -> int:
    """Audit one model by one backend; return 1 where it fails."""
    dtype = next(model.parameters()).dtype
    name = f"  {kind:<11}{str(dtype).removeprefix('torch.'):<10}{backend:<9}"
    if backend == "varlen" and (dtype == torch.float32 or device.kernel is stand_in):
        print(f"{name}not here: the kernel runs in half precision, on CUDA from compute capability 8.0 on")
        return 0
    if backend == "flex" and not device.gpu:
        print(f"{name}not here: it has no backward pass on a CPU")
        return 0
    verdict = nopad.audit(model, backend=backend, capacity=32)
    worst = max((check.value / check.limit for check in verdict.checks if check.limit), default=0.0)
    print(f"{name}{verdict.outcome}, at most {worst:.2f} of what is allowed, {len(verdict.checks)} checks", flush=True)
    if not verdict.isolated:
        print("\n".join(f"      {line}" for line in str(verdict).splitlines()))
    return int(not verdict.isolated)


def bert(device: Device, clock: Clock, tiny: bool) -> None:
    """BERT-large forward and backward, every way."""
    work = _bert(device, tiny)
    print(f"  one step of nopad's and of the kernel by hand differ by {work.same():.1e} of the largest value")
    ways = [(BY_HAND, ""), ("varlen", ""), ("padded", "efficient"), ("padded", "cudnn"), ("mask", "efficient")]
    ways += [("mask", "cudnn"), ("flex", ""), *((name, "") for name in _flash_of(device))]
    _ways(work, ways, clock, 0.6)


def _bert(device: Device, tiny: bool) -> Work:
    torch.manual_seed(0)
    sizes = {**SMALL, "vocab_size": 99} if tiny else LARGE
    config = transformers.BertConfig(**sizes, **QUIET)
    model = transformers.BertModel(config, add_pooling_layer=False).to(device.kind, device.half).train()
    lengths = lognormal(12, 12, 0.9, 48) if tiny else lognormal(256, 160, 0.9, 512)
    return Work(device, model, lengths, *((48, 4) if tiny else (512, 32)))


def graphs(device: Device, clock: Clock, tiny: bool) -> None:
    """Rows of static shapes: as they are, and replayed as a CUDA graph."""
    work = _bert(device, tiny)
    model = nopad.packed(work.model, backend="mask")
    fresh = partial(_static, work)
    rows = [measured(device, "static rows", work.step, fresh, work.repeats, "efficient")]
    try:
        with pinned("efficient" if device.gpu else ""):
            replay = Replay(work, fresh()[0])
        rows.append(measured(device, "static rows, CUDA graph", replay, fresh, work.repeats))
        wrong = replay.apart(fresh()[-1])
        print(f"  replayed states differ from those of a call by {wrong:.1e} of the largest value")
    except RuntimeError as error:
        rows.append(Row("static rows, CUDA graph", said=f"not here: {str(error).splitlines()[0][:90]}"))
    nopad.unpacked(model)
    rows.append(work.run(BY_HAND))
    table(work, rows)


def _static(work: Work) -> list[dict[str, torch.Tensor]]:
    return [static_inputs(work.model, batch) for batch in work.packed(False)]


class Replay:
    """One step forward and backward as a CUDA graph; without a GPU the step itself."""

    def __init__(self, work: Work, inputs: dict[str, torch.Tensor]) -> None:
        self.work, self.inputs = work, _free(inputs)
        self.graph: Any = None
        if not work.device.gpu:
            self.states = self._forward()
            return
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):  # lazy set-up of libraries does not belong in a graph
            for _ in range(3):
                self._both()
        torch.cuda.current_stream().wait_stream(side)
        work.model.zero_grad(set_to_none=True)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.states = self._both()

    def _forward(self) -> torch.Tensor:
        return self.work.model(**self.inputs).last_hidden_state

    def _both(self) -> torch.Tensor:
        states = self._forward()
        states.backward(torch.ones_like(states))
        return states.detach()

    def __call__(self, inputs: dict[str, torch.Tensor]) -> None:
        """Copy the inputs to where the graph reads them, and replay it, which writes the gradients anew."""
        for name, value in inputs.items():
            if isinstance(value, torch.Tensor):
                self.inputs[name].copy_(value)
        if self.graph is not None:
            self.graph.replay()
        else:
            self.work.model.zero_grad(set_to_none=True)
            self.states = self._both()

    def apart(self, inputs: dict[str, torch.Tensor]) -> float:
        """Return how far replayed states of real tokens are from those of a call, of the largest."""
        self(inputs)
        with torch.no_grad():
            wanted = self.work.model(**inputs).last_hidden_state
        real = inputs["attention_mask"][:, 0, 0] != 0
        return float((self.states - wanted)[real].abs().max() / wanted[real].abs().max())


def causal(device: Device, clock: Clock, tiny: bool) -> None:
    """A Llama of a billion parameters at two capacities."""
    torch.manual_seed(0)
    sizes = {**SMALL, "num_key_value_heads": 1, "vocab_size": 99, "max_position_embeddings": 256} if tiny else BILLION
    config = transformers.LlamaConfig(**sizes, use_cache=False)
    model = transformers.LlamaModel(config).to(device.kind, device.half).train()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    print(f"  {sum(p.numel() for p in model.parameters()) / 1e9:.2f} billion parameters")
    for capacity, rows, count in ((64, 2, 8), (256, 1, 6)) if tiny else ((4096, 4, 64), (32_768, 1, 16)):
        print(f"  at {capacity:,} tokens")
        work = Work(device, model, lognormal(count, capacity / 8, 1.0, capacity), capacity, rows)
        ways = [(BY_HAND, ""), ("varlen", ""), ("padded", "efficient"), ("mask", "efficient"), ("flex", "")]
        _ways(work, [*ways, *((name, "") for name in _flash_of(device))], clock, 0.8 if rows > 1 else 1.0)


def _flash_of(device: Device) -> list[str]:
    """Names of transformers' own flash attentions, where their packages are installed."""
    packages = {"flash_attention_2": "flash_attn", "flash_attention_3": "flash_attn_interface"}
    found = [name for name, package in packages.items() if find_spec(package) is not None]
    if not found:
        print("    (transformers' own flash attention is not installed: flash_attn)")
    return found if device.gpu else []


def _ways(work: Work, ways: list[tuple[str, str]], clock: Clock, share: float) -> None:
    rows = []
    for name, pin in ways:
        if clock.over(share):
            rows.append(Row(f"{name}, {pin}".rstrip(", "), said="left out: no time is left for it"))
        elif name == "flex" and not work.device.gpu:
            rows.append(Row(name, said="not here: it has no backward pass on a CPU"))
        else:
            rows.append(work.run(name, pin))
    table(work, rows)


PARTS = {"audit": audits, "bert": bert, "graphs": graphs, "causal": causal}


def main() -> None:
    parser = argparse.ArgumentParser(description="nopad on a GPU")
    parser.add_argument("parts", nargs="*", help=f"some of {', '.join(PARTS)}; all of them by default")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--tiny", action="store_true", help="toy sizes")
    parser.add_argument("--minutes", type=float, default=10, help="time that it may take")
    asked = parser.parse_args()
    unknown = set(asked.parts) - set(PARTS)
    if unknown:
        parser.error(f"unknown parts: {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    if asked.device == "cpu" and not asked.tiny:
        parser.error("on a CPU only --tiny is of use: real sizes would take days")
    device, clock = find(asked.device), Clock(asked.minutes)
    facts(device, asked.tiny)
    if device.gpu:
        print(
            f"one matrix product: {matmul_rate(device, 512 if asked.tiny else 8192) / 1e12:,.0f} TFLOP/s; the maker says",
            end=" ",
        )
        print(f"{device.peak / 1e12:,.0f}" if device.peak else "what is not known here, so there is no MFU")
    for name in asked.parts or PARTS:
        print(f"\n{name}: {PARTS[name].__doc__}", flush=True)
        PARTS[name](device, clock, asked.tiny)
        if device.gpu:
            torch.cuda.empty_cache()
    if not device.gpu:
        print("\nNO GPU WAS HERE: every line ran, and no number above says anything about one")


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    logging.getLogger("nopad").setLevel(logging.ERROR)
    transformers.logging.set_verbosity_error()
    main()
