"""nopad against what people use, on the same lengths in one run: packs, distance to the bound, seconds, memory.

Each contestant runs in a process of its own, each peer in an environment of its own under `.peers/` (made on first use;
their pins exclude each other). Timed is one packing call: lengths in memory to the packs, without imports, compilation
and loading; for nopad histogram, plan, proof and assignment. Memory is the peak of the process, its own imports
included, until the packs are there. Every result is checked: each sequence in exactly one pack, no pack over capacity.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from inputs import lognormal, machine, shuffled_lengths, wikipedia
from rich.console import Console
from rich.table import Table

import nopad

HERE = Path(__file__).resolve().parent
ENVIRONMENTS = HERE.parent / ".peers"
TORCH = ("torch==2.13.0",)  # first and alone: what comes after finds the build of this machine's pip settings


@dataclass(frozen=True)
class Peer:
    """One tool: pip arguments, one tuple an installation step, and its variants (name, what it means)."""

    steps: tuple[tuple[str, ...], ...]
    variants: tuple[tuple[str, str], ...]


PEERS = {
    "nopad": Peer((), (("auto", "default (auto), with a proof"), ("lpfhp", "lpfhp"))),
    "trl": Peer((TORCH, ("trl==1.16.0",)), (("rows", "bfd, default: 1,000 rows a batch"), ("all", "bfd, one batch"))),
    "llamafactory": Peer(
        (("numpy>=2",), ("--no-deps", "llamafactory==0.9.5")),
        (("rows", "knapsack, default: 1,000 rows a batch"), ("all", "knapsack, one call")),
    ),
    "olmo_core": Peer((TORCH, ("ai2-olmo-core==3.0.0",)), (("all", "InstancePacker: all documents"),)),
    "axolotl": Peer((TORCH, ("axolotl==0.19.0",)), (("groups", "multipack, default: groups of 100,000"),)),
}


def install(name: str) -> str:
    """Make a peer's environment where it is not there yet; return what went wrong, empty when nothing did."""
    folder = ENVIRONMENTS / name
    ready = folder / "ready"
    wanted = repr(PEERS[name].steps)
    if not PEERS[name].steps or (ready.exists() and ready.read_text() == wanted):
        return ""
    print(f"  installing {name} into {folder.relative_to(HERE.parent)}", file=sys.stderr)
    make = [sys.executable, "-m", "venv", "--clear", str(folder)]
    pip = [str(folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "-q", "install"]
    for command in (make, *([*pip, *step] for step in PEERS[name].steps)):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            return f"not installed: {_last_line(done.stderr)}"
    ready.write_text(wanted)
    return ""


def contest(name: str, variant: str, lengths: Path, capacity: int, limits: argparse.Namespace) -> dict[str, object]:
    """Run one contestant on one input; return its measurements, or a note why there are none."""
    python = ENVIRONMENTS / name / "bin" / "python" if PEERS[name].steps else Path(sys.executable)
    runner = HERE / "peer_runners" / f"{name}_runner.py"
    most = limits.memory_gib * 2**30
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "packs.npz"
        try:
            done = subprocess.run(
                [str(python), str(runner), str(lengths), str(capacity), variant, str(out)],
                capture_output=True,
                text=True,
                timeout=limits.seconds,
                cwd=folder,
                preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (most, most)),
                check=False,
            )
        except subprocess.TimeoutExpired:
            return {"note": f"stopped at {limits.seconds} s"}
        if done.returncode:
            return {"note": f"failed within {limits.memory_gib} GiB: {_last_line(done.stderr) or done.returncode}"}
        measured = json.loads(done.stdout.splitlines()[-1])
        return measured | check(np.load(out), np.load(lengths), capacity)


def check(packs: np.lib.npyio.NpzFile, lengths: np.ndarray, capacity: int) -> dict[str, object]:
    """Count and verify: each item once and no pack over capacity; by lengths where the tool does not return items."""
    indptr = packs["indptr"]
    if "items" in packs:
        times = np.bincount(packs["items"], minlength=len(lengths))
        complete = bool(times.size == len(lengths) and (times == 1).all())
        inside, what = lengths[packs["items"]], "each item once"
    else:
        inside, what = packs["lengths"], "each length as often as it came; items are lost"
        counted = np.bincount(inside, minlength=capacity + 1)
        complete = bool(np.array_equal(counted, np.bincount(lengths, minlength=capacity + 1)))
    within = bool(np.add.reduceat(inside.astype(np.int64), indptr[:-1]).max() <= capacity)
    depth = int(np.diff(indptr).max())
    if complete and within:
        return {"packs": len(indptr) - 1, "depth": depth, "verified": what}
    lost = len(lengths) - len(inside)
    return {"note": f"wrong: {'' if within else 'a pack is over capacity; '}{lost:,} of {len(lengths):,} items lost"}


def inputs(scale: float) -> dict[str, tuple[str, np.ndarray, int]]:
    """Return the inputs by name: what it is, lengths in order of arrival, capacity."""
    histogram, what = wikipedia()
    shuffled = shuffled_lengths(histogram)
    made = {
        "long": ("100 k lognormal(3000, 1.3), capacity 131,072", lognormal(100_000, 3000, 1.3, 131_072), 131_072),
        "sft": ("1 M lognormal(350, 1.1), capacity 8,192", lognormal(1_000_000, 350, 1.1, 8192), 8192),
        "wikipedia": (f"16.28 M, {what}, capacity 512", shuffled, 512),
    }
    return {name: (text, all_[: max(int(scale * len(all_)), 1)], c) for name, (text, all_, c) in made.items()}


TARGETS = {"long": (0, 0.05, None), "sft": (1, 0.3, None), "wikipedia": (None, 3.0, 1e9)}  # above bound, s, bytes


def verdict(name: str, rows: list[dict], tokens_bound: int) -> str:
    """Say whether nopad's default meets its targets on an input."""
    ours = rows[0]
    if "packs" not in ours:
        return "  targets: not met, no result"
    above, seconds, memory = TARGETS[name]
    others = [row["packs"] for row in rows if "packs" in row and not row["who"].startswith("nopad")]
    checks = {f"<= {seconds} s": ours["seconds"] <= seconds}
    if above is not None:
        checks[f"token bound + {above}"] = ours["packs"] <= tokens_bound + above
    if memory is not None:
        checks[f"<= {memory / 1e9:g} GB"] = ours["peak_bytes"] <= memory
    if others:
        checks["fewest packs"] = ours["packs"] <= min(others)
    return "  targets of nopad auto: " + ", ".join(
        f"{what} {'met' if met else 'NOT MET'}" for what, met in checks.items()
    )


def show(text: str, bound: int, tokens: int, capacity: int, rows: list[dict]) -> None:
    """Print one input's table."""
    table = Table(title=f"{text}: no plan has fewer than {bound:,} packs", title_justify="left")
    for head in ("tool", "packs", "above bound", "efficiency", "deepest", "seconds", "peak MB"):
        table.add_column(head, justify="left" if head == "tool" else "right", no_wrap=True)
    table.add_column("checked, or why not")
    for row in rows:
        if "packs" not in row:
            table.add_row(row["who"], *[""] * 6, str(row["note"]))
            continue
        packs = row["packs"]
        table.add_row(
            row["who"],
            f"{packs:,}",
            f"{packs - bound:,} ({packs / bound - 1:.4%})",
            f"{tokens / (packs * capacity):.3%}",
            f"{row['depth']:,}",
            f"{row['seconds']:.3f}",
            f"{row['peak_bytes'] / 1e6:,.0f}",
            row["verified"],
        )
    Console(width=None if sys.stdout.isatty() else 180).print(table)


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:160] if lines else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", default=",".join(PEERS), help="which, by comma")
    parser.add_argument("--inputs", default="long,sft,wikipedia", help="which, by comma")
    parser.add_argument("--scale", type=float, default=1.0, help="take only this share of each input")
    parser.add_argument("--seconds", type=int, default=300, help="limit for a contestant, loading included")
    parser.add_argument("--memory-gib", type=int, default=20, help="limit for a contestant's private memory")
    options = parser.parse_args()
    for asked, known in ((options.peers, PEERS), (options.inputs, TARGETS)):
        if unknown := [name for name in asked.split(",") if name not in known]:
            parser.error(f"there is no {', '.join(unknown)}; there are {', '.join(known)}")
    print(f"peers; {machine()}; limits {options.seconds} s and {options.memory_gib} GiB a contestant")
    missing = {name: install(name) for name in options.peers.split(",")}
    available = inputs(options.scale)
    for key in options.inputs.split(","):
        text, lengths, capacity = available[key]
        bound = nopad.plan(lengths, capacity).lower_bound
        tokens = int(lengths.sum(dtype=np.int64))
        rows = []
        with tempfile.NamedTemporaryFile(suffix=".npy") as file:
            np.save(file, lengths)
            file.flush()
            for name, why_not in missing.items():
                for variant, what in PEERS[name].variants:
                    measured = (
                        {"note": why_not} if why_not else contest(name, variant, Path(file.name), capacity, options)
                    )
                    rows.append({"who": f"{name}: {what}", **measured})
        show(text, bound, tokens, capacity, rows)
        if options.scale == 1:
            print(verdict(key, rows, -(-tokens // capacity)), flush=True)


main()
