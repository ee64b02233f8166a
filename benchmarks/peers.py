"""nopad against what people use, on the same lengths in one run: packs, distance to the bound, seconds, memory.

Each contestant runs in a process of its own, each peer in an environment of its own under `.peers/` (made on first use;
their pins exclude each other). Timed is one packing call: lengths in memory to the packs, without imports, compilation
and loading; for nopad histogram, plan, proof and assignment. Memory is the peak of the process, its own imports
included, until the packs are there. Every result is checked: each sequence in exactly one pack, no pack over capacity,
as many packs as the tool says.
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
from inputs import PUBLISHED, lognormal, machine, shuffled_lengths, wikipedia
from rich.console import Console
from rich.table import Table
from rich.text import Text

import nopad
from nopad import Histogram

HERE = Path(__file__).resolve().parent
ENVIRONMENTS = HERE.parent / ".peers"
INSTALL_SECONDS = 1800
OUT_OF_MEMORY = ("MemoryError", "bad_alloc", "Cannot allocate memory", "can't allocate memory")
TORCH = ("torch==2.13.0",)  # first and alone: what comes after finds the build of this machine's pip settings


@dataclass(frozen=True)
class Peer:
    """One tool: pip arguments, one tuple an installation step, and its variants (name, what it means)."""

    steps: tuple[tuple[str, ...], ...]
    variants: tuple[tuple[str, str], ...]
    note: str = ""


PEERS = {
    "nopad": Peer((), (("auto", "default (auto)"), ("lpfhp", "lpfhp")), "proof and map included"),
    "trl": Peer(
        (TORCH, ("trl==1.16.0",)),
        (("rows", "bfd, default: 1,000 rows per batch"), ("all", "bfd, one batch")),
        "rows of nulls; map from the rows it takes",
    ),
    "llamafactory": Peer(
        (("numpy>=2",), ("--no-deps", "llamafactory==0.9.5")),
        (("rows", "knapsack, default: 1,000 rows per batch"), ("all", "knapsack, one call")),
        "packs lengths; dealing out items is timed",
    ),
    "olmo_core": Peer(
        (TORCH, ("ai2-olmo-core==3.0.0",)), (("all", "InstancePacker: all documents"),), "its segment tree is timed"
    ),
    "axolotl": Peer(
        (TORCH, ("axolotl==0.19.0",)),
        (("groups", "multipack, default: groups of 100,000"),),
        "at most 200 sequences per pack",
    ),
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
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"not installed: {_last_line(str(error))}"
        if done.returncode:
            return f"not installed: {_last_line(done.stderr, 'ERROR') or _last_line(done.stdout)}"
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
            over = any(words in done.stderr for words in OUT_OF_MEMORY)
            why = f"over the memory limit of {limits.memory_gib} GiB" if over else "failed"
            return {"note": f"{why}: {_last_line(done.stderr) or f'exit status {done.returncode}'}"}
        try:
            measured = json.loads(done.stdout.splitlines()[-1])
            packs = np.load(out)
        except (OSError, ValueError, IndexError) as error:
            return {"note": f"failed: no packs came back ({_last_line(str(error))})"}
        found = check(packs, np.load(lengths), capacity)
        return {**measured, **found, "note": found["note"] or PEERS[name].note}


def check(packs: np.lib.npyio.NpzFile, lengths: np.ndarray, capacity: int) -> dict[str, object]:
    """Count and verify: each item in one pack, no pack empty or over capacity, as many packs as the tool says."""
    items, sizes, said = packs["items"], np.diff(packs["indptr"]), int(packs["packs"])
    pack_of = np.full(len(lengths), -1, dtype=np.int64)
    wrong = []
    if items.size != sizes.sum() or (items.size and (items.min() < 0 or items.max() >= len(lengths))):
        wrong.append("packs hold items that do not exist")
    else:
        pack_of[items] = np.repeat(np.arange(sizes.size), sizes)
        lost = int((pack_of < 0).sum())
        if lost or items.size != len(lengths):
            wrong.append(f"{lost:,} of {len(lengths):,} items lost, {items.size + lost - len(lengths):,} repeated")
        elif np.bincount(pack_of, weights=lengths).max() > capacity:
            wrong.append("a pack is over capacity")
    if sizes.min(initial=1) < 1 or said != sizes.size:
        wrong.append(f"{said:,} packs said, {np.count_nonzero(sizes):,} found")
    note = f"wrong: {'; '.join(wrong)}" if wrong else ""
    return {"packs": said, "depth": int(sizes.max(initial=0)), "verified": not wrong, "note": note}


def draw(name: str, scale: float, histogram: Path | None) -> tuple[str, np.ndarray, int]:
    """Return an input: what it is, lengths in order of arrival, capacity."""
    if name == "long":
        what, lengths, capacity = "lognormal(3000, 1.3)", lognormal(100_000, 3000, 1.3, 131_072), 131_072
    elif name == "sft":
        what, lengths, capacity = "lognormal(350, 1.1)", lognormal(1_000_000, 350, 1.1, 8192), 8192
    else:
        counts, what = (Histogram.load(histogram), f"Wikipedia-512 ({histogram.name})") if histogram else wikipedia()
        lengths, capacity = shuffled_lengths(counts), 512
    lengths = lengths[: max(int(scale * len(lengths)), 1)]
    return f"{name}: {len(lengths):,} sequences, {what}, capacity {capacity:,}", lengths, capacity


TARGETS = {"long": (0, 0.05, None), "sft": (1, 0.3, None), "wikipedia": (None, 3.0, 1e9)}  # above bound, s, bytes


def verdict(name: str, rows: list[dict], tokens_bound: int) -> str:
    """Say whether nopad's default meets its targets on an input."""
    ours = next((row for row in rows if row["name"] == "nopad"), None)
    if ours is None or not ours.get("verified"):
        return f"  {name}: no verified result of nopad"
    above, seconds, memory = TARGETS[name]
    peers = [row for row in rows if row["name"] != "nopad"]
    others = [row["packs"] for row in peers if row.get("verified")]
    checks = {f"{ours['seconds']:.3f} s <= {seconds} s": ours["seconds"] <= seconds}
    if above is not None:
        checks[f"packs <= token bound + {above}"] = ours["packs"] <= tokens_bound + above
    if memory is not None:
        mb = ours["peak_bytes"] / 1e6
        checks[f"{mb:,.0f} MB <= {memory / 1e6:,.0f} MB"] = ours["peak_bytes"] <= memory
    if above is None and others:
        checks[f"fewest packs of all ({len(others)} of {len(peers)} peers' rows have packs)"] = ours["packs"] < min(
            others
        )
    return f"  {name}: " + ", ".join(f"{what} {'met' if met else 'NOT MET'}" for what, met in checks.items())


def show(text: str, bound: int, tokens: int, capacity: int, rows: list[dict]) -> None:
    """Print one input's table."""
    table = Table(title=f"{text}: no plan has fewer than {bound:,} packs", title_justify="left")
    for head in ("tool", "packs", "above bound", "efficiency", "deepest", "seconds", "peak MB", "verified"):
        table.add_column(head, justify="left" if head in ("tool", "verified") else "right", no_wrap=True)
    table.add_column("note")
    for row in rows:
        if "packs" not in row:
            table.add_row(row["who"], *[""] * 7, Text(row["note"]))
            continue
        packs = row["packs"]
        table.add_row(
            row["who"],
            f"{packs:,}",
            f"{packs - bound:,} ({packs / bound - 1:.4%})",
            f"{tokens / max(packs * capacity, 1):.3%}",
            f"{row['depth']:,}",
            f"{row['seconds']:.3f}",
            f"{row['peak_bytes'] / 1e6:,.0f}",
            "yes" if row["verified"] else "NO",
            Text(row["note"]),
        )
    Console(width=None if sys.stdout.isatty() else 200).print(table)


def _last_line(text: str, holding: str = "") -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip() and holding in line]
    return lines[-1][:160] if lines else ""


def compare(key: str, missing: dict[str, str], options: argparse.Namespace) -> str:
    """Run everyone on one input and print the table; return nopad's verdict."""
    text, lengths, capacity = draw(key, options.scale, options.histogram)
    bound = nopad.plan(lengths, capacity).lower_bound
    tokens = int(lengths.sum(dtype=np.int64))
    rows: list[dict] = []
    with tempfile.NamedTemporaryFile(suffix=".npy") as file:
        np.save(file, lengths)
        file.flush()
        for name, why_not in missing.items():
            for variant, what in PEERS[name].variants:
                measured = {"note": why_not} if why_not else contest(name, variant, Path(file.name), capacity, options)
                rows.append({"name": name, "who": f"{name}: {what}", **measured})
    show(text, bound, tokens, capacity, rows)
    return verdict(key, rows, -(-tokens // capacity))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", default=",".join(PEERS), help="which, by comma")
    parser.add_argument("--inputs", default=",".join(TARGETS), help="which, by comma")
    parser.add_argument("--histogram", type=Path, help="published Wikipedia-512 histogram, a JSON file")
    parser.add_argument("--scale", type=float, default=1.0, help="take only this share of each input")
    parser.add_argument("--seconds", type=int, default=300, help="limit for a contestant, loading included")
    parser.add_argument("--memory-gib", type=int, default=20, help="limit for a contestant's private memory")
    options = parser.parse_args()
    for asked, known in ((options.peers, PEERS), (options.inputs, TARGETS)):
        if unknown := [name for name in asked.split(",") if name not in known]:
            parser.error(f"there is no {', '.join(unknown)}; there are {', '.join(known)}")
    if options.histogram and not options.histogram.exists():
        parser.error(f"there is no file {options.histogram}")
    return options


def main() -> None:
    options = arguments()
    print(f"peers; {machine()}; limits {options.seconds} s and {options.memory_gib} GiB a contestant")
    if "wikipedia" in options.inputs.split(",") and not (options.histogram or PUBLISHED.exists()):
        print(
            "the published histogram is not here (--histogram): wikipedia is SYNTHETIC, its packs compare with nothing"
        )
    missing = {name: install(name) for name in options.peers.split(",")}
    verdicts = [compare(key, missing, options) for key in options.inputs.split(",")]
    if options.scale == 1:
        print("targets of nopad's default:", *verdicts, sep="\n", flush=True)
    else:
        print("targets are for --scale 1 only")


main()
