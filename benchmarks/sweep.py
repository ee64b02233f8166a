"""Every text model type of the installed transformers: isolated with a proof, or refused with a reason.

Each type is built from its own default configuration, as a small copy (`nopad.admitting.small`). Types that nopad's
tables know are audited with their line of the table. All others, those that a table refuses among them, are derived and
proven (`nopad.packed(model, prove="always")`). Then each admitted model gets other weights and other sequences, and
packs are held against the stock model alone, in float64: a difference there would be a wrong proof.

    python benchmarks/sweep.py [kind ...] [--write]    # --write: the table of docs/internals/equality.md, or these rows; the counts
    python benchmarks/sweep.py --ten 19                # ten types without a line, drawn by this seed
"""

from __future__ import annotations

import argparse
import copy
import logging
import random
import re
import sys
import time
import traceback
import warnings
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import transformers
from inputs import machine

import nopad
from nopad.admitting.bad import PARTS, outputs_of
from nopad.admitting.line import line_of
from nopad.admitting.proof import prove
from nopad.admitting.small import ran, small_copy
from nopad.auditing.limits import EXACT, PARTLY_SINGLE
from nopad.auditing.steadiness import Singles
from nopad.auditing.subject import subject_of
from nopad.model import safety
from nopad.model.admission import positions_of
from nopad.model.families import FAMILIES, PAIRS
from nopad.model.refused import REFUSED

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "model"))
from kinds import tiny

PAGE = Path(__file__).resolve().parents[1] / "docs" / "internals" / "equality.md"
HEAD = "| type | class | how | verdict | seconds |"
SENTENCE = re.compile(r"Of \d+ types, \d+ are isolated, .*; none is silently wrong\.")
LENGTHS = (3, 140, 1, 17, 22)
TARGET = 100


@dataclass(frozen=True)
class Row:
    """One line of the table: `held` is the largest difference of the other weights and sequences, relative."""

    kind: str
    model: str
    how: str
    outcome: str
    said: str
    seconds: float
    held: float = 0.0


def text_types() -> dict[str, tuple[type, Any]]:
    """Every model type that takes token ids alone, with the class to build and a configuration."""
    found: dict[str, tuple[type, Any]] = {}
    for kind in sorted(transformers.CONFIG_MAPPING):
        try:
            config = transformers.CONFIG_MAPPING[kind]()
        except Exception:  # a configuration that has no defaults
            continue
        parts = any(getattr(config, part, None) is not None for part in PARTS)
        if not getattr(config, "vocab_size", None) or parts or config.get_text_config() is not config:
            continue
        autos = [transformers.AutoModelForCausalLM, transformers.AutoModel]
        if getattr(config, "is_encoder_decoder", False) or (kind in FAMILIES and not FAMILIES[kind].causal):
            del autos[0]
        auto = next((one for one in autos if type(config) in one._model_mapping), None)
        try:
            made = None if auto is None else auto._model_mapping[type(config)]
        except ValueError:  # named in the table, and not there
            continue
        made = made[0] if isinstance(made, list | tuple) else made
        if made is None:
            continue
        if kind == "t5":
            made = transformers.T5EncoderModel
        if getattr(made, "main_input_name", "input_ids") == "input_ids":
            found[kind] = made, config
    return found


def swept(kind: str, made: type, config: Any) -> Row:
    """Prove one model type, by its default configuration or else a tiny one; hold what is admitted against others."""
    row = Row(kind, made.__name__, "", "refused", "", 0.0)
    for given, which in ((config, ""), (None, ", a tiny configuration")):
        try:
            with torch.device("meta"):
                model = made(tiny(kind) if given is None else given)
        except Exception as error:  # defaults that cannot be built
            row = Row(kind, made.__name__, f"not built{which}", "refused", f"{type(error).__name__}: {error}", 0.0)
            continue
        found = judged(kind, model)
        row = replace(found, how=found.how + which)
        if row.outcome == "isolated" or "no small copy" not in row.said:
            break
    return row


def judged(kind: str, model: Any) -> Row:
    """Prove one model. Encoder-decoders of the tables are audited only, for the audit itself gives them targets."""
    name, begin = type(model).__name__, time.perf_counter()
    if (kind in FAMILIES or kind in PAIRS) and getattr(model.config, "is_encoder_decoder", False):
        verdict = nopad.audit(small_copy(model)[0])
        outcome = "isolated" if verdict.isolated else "refused"
        return Row(kind, name, "the table", outcome, f"{len(verdict.checks)} checks", time.perf_counter() - begin)
    proof = prove(model)
    how = "a refusing table, and derived" if kind in REFUSED else "derived"
    if proof.family is not None and proof.family is FAMILIES.get(kind):
        how = "the table"
    elif proof.family is not None:
        how = f"{how}: `{line_of(proof.family)}`"
    said = proof.reason or f"{proof.checks} checks"
    held = 0.0
    if proof.admitted:
        try:
            held = against_others(model, proof)
        except Exception as error:  # an error is no silent result, and no proof either
            said = f"admitted, and raises on other sequences: {type(error).__name__}: {error}"
            return Row(kind, name, how, "refused", said, proof.seconds)
    return Row(kind, name, how, "isolated" if proof.admitted else "refused", said, proof.seconds, held)


def against_others(model: Any, proof: Any) -> float:
    """The largest difference between packs and the stock model alone, with other weights and sequences."""
    small, _ = small_copy(model)
    torch.manual_seed(7)
    with torch.no_grad():
        for parameter in small.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    size = small.config.get_text_config().vocab_size
    most = positions_of(small, proof.of(small)) or max(LENGTHS)
    sequences = [torch.randint(0, size, (min(n, most),)).tolist() for n in LENGTHS]
    make: Any = Singles
    with subject_of(small, torch.float64, False) as exact:
        with make() as watch:
            wanted = [outputs_of(ran(exact, one)) for one in sequences]
        fresh = copy.deepcopy(exact)  # a model may change with what it is called with
        safety.packed(fresh, family=proof.of(fresh), head=proof.head)
        worst = 0.0
        flat = [] if proof.family.narrow else [nopad.Flat()]
        for form in (*flat, nopad.Rows(max(map(len, sequences)))):
            batch = nopad.PackedBatch.from_sequences(sequences, form=form)
            with torch.no_grad():
                found = outputs_of(fresh(**batch))
            for name in set(found) & set(wanted[0]):
                token = tuple(found[name].shape[:2]) == batch.layout.shape
                parts = (batch.unpack_tokens if token else batch.unpack_sequences)(found[name])
                for one, part in zip(wanted, parts, strict=True):
                    scale = max(float(one[name].abs().max()), 1e-30)
                    worst = max(worst, float((part - one[name][0]).abs().max()) / scale)
        safety.unpacked(fresh)
    limit = PARTLY_SINGLE if watch.found else EXACT
    return worst if worst > limit else 0.0


def table(rows: list[Row]) -> str:
    lines = [HEAD, "|---|---|---|---|---|"]
    for row in rows:
        said = row.said.replace("|", "\\|").replace("\n", " ")
        said = said if len(said) <= 240 else said[:237] + "..."
        verdict = f"**{row.outcome}**" if row.outcome == "isolated" else f"refused: {said}"
        lines.append(f"| {row.kind} | {row.model} | {row.how} | {verdict} | {row.seconds:.1f} |")
    return "\n".join(lines)


def written(page: str, rows: list[Row], *, keep: bool) -> str:
    """The page with these rows, and with the sentence that counts all rows; with `keep`, its other rows stay."""
    begin = page.index(HEAD)
    end = page.index("\n\n", begin)
    given = {_kind(line): line for line in table(rows).splitlines()}
    lines = {**{_kind(line): line for line in page[begin:end].splitlines()}, **given} if keep else given
    page = page[:begin] + "\n".join(lines.values()) + page[end:]
    counted, found = SENTENCE.subn(sentence([*lines.values()][2:]), page)
    if found != 1:
        raise SystemExit(f"{PAGE.name} has {found} sentences that count the types; it must have one")
    return counted


def _kind(line: str) -> str:
    return line.split(" | ")[0].removeprefix("| ")


def sentence(lines: list[str]) -> str:
    """How many types the lines of the table have, by verdict."""
    isolated = [line for line in lines if "| **isolated** |" in line]
    derived = sum("derived" in line.split(" | ")[2] for line in isolated)
    return (
        f"Of {len(lines)} types, {len(isolated)} are isolated, {derived} of them by a derived line, and "
        f"{len(lines) - len(isolated)} are refused with a reason; none is silently wrong."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", help="which; all by default")
    parser.add_argument("--ten", type=int, metavar="SEED", help="ten types that have no line, drawn by this seed")
    parser.add_argument("--write", action="store_true", help="write the table into docs/internals/equality.md")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    logging.getLogger("nopad").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    types = text_types()
    kinds = options.kinds or list(types)
    if options.ten is not None:
        kinds = random.Random(options.ten).sample(
            [kind for kind in types if kind not in {*FAMILIES, *PAIRS, *REFUSED}], 10
        )
    print(
        f"{len(kinds)} text model types: {machine()}, torch {torch.__version__}, transformers {transformers.__version__}"
    )
    rows, broken = [], []
    for kind in kinds:
        try:
            row = swept(kind, *types[kind])
        except Exception:
            broken.append(kind)
            print(f"{kind}: TRACEBACK\n{traceback.format_exc()}", flush=True)
            continue
        rows.append(row)
        wrong = f"  WRONG by {row.held:.1e}" if row.held else ""
        print(f"{kind:<28}{row.outcome:<10}{row.seconds:5.1f} s  {row.how}; {row.said[:400]}{wrong}", flush=True)
    counts, wrong_ones = Counter(row.outcome for row in rows), [row.kind for row in rows if row.held]
    derived = sum(row.outcome == "isolated" and "derived" in row.how for row in rows)
    print(f"\n{counts['isolated']} isolated ({derived} of them derived), {counts['refused']} refused with a reason")
    print(f"silently wrong: {', '.join(wrong_ones) or 'none'}; tracebacks: {', '.join(broken) or 'none'}")
    print(f"the longest took {max((row.seconds for row in rows), default=0):.1f} s; target {TARGET} isolated")
    if options.write and (wrong_ones or broken):
        raise SystemExit(f"{PAGE.name} is not written: it says that no type is wrong, and that each has a verdict")
    if options.write:
        PAGE.write_text(written(PAGE.read_text(), rows, keep=bool(options.kinds)))


if __name__ == "__main__":
    main()
