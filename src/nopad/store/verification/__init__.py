"""Verify a plan file or a packed dataset by reading all of it.

These are the checks of a dataset:

* Every file exists and has its checksum.
* Every sequence is in exactly one pack, and no pack exceeds the capacity or depth.
* The pieces of split records join without a gap, and the lengths are exactly those of the plan.
* The totals and counts in the manifest agree with the files and with each other.
* Assigning the plan again with the stated seed and order gives the same packs.
* If a share was held out, both datasets come from one job, and each record is in the dataset that the seed chooses.
* If the source is given, every token (of an index, every length) and every count agrees with it.

Verifying takes as long as Parquet decoding. Memory: at most 30 bytes per sequence, 8 more per sequence for each column
compared with a source, and about 100 MB for row groups that are decoded ahead.
"""

from __future__ import annotations

from pathlib import Path

from nopad.corpus import Source, Tokenizer
from nopad.errors import CorruptError, FormatError, OptionError
from nopad.files import sha256_file
from nopad.planning.plan import Plan
from nopad.planning.stored import load_plan
from nopad.store.manifest import MANIFEST, PLAN, Manifest, split_folders
from nopad.store.monitor import Monitor, Silent
from nopad.store.verification.content import content_problems, dealing_problems, read_content
from nopad.store.verification.files import file_problems
from nopad.store.verification.halves import Half, half_of, pair_problems
from nopad.store.verification.options import option_problems
from nopad.store.verification.source import source_problems

__all__ = ["verify"]

_MOST = 20


def verify(
    path: str | Path,
    *,
    source: Source | None = None,
    tokenizer: Tokenizer | None = None,
    monitor: Monitor | None = None,
) -> list[str]:
    """Return the problems of a plan file or a packed dataset, one sentence each; an empty list if it is sound.

    Of a dataset, or of the folder of a job, at most 20 problems are returned.

    Args:
        path: a plan file, a dataset folder, or the folder of a job that held a share out.
        source: the source that the dataset was packed from, with which every token (of an index, every length) is
            compared; None: no comparison.
        tokenizer: the tokenizer that the dataset was packed with; needed if `source` is text.
        monitor: receives the progress; None: nothing is reported.

    Raises:
        FormatError: `path` is neither a plan nor a dataset, has an unknown format version, or is a plan file that
            cannot be read or whose numbers contradict each other; or the tokenizer cannot encode a text of the source.
        SourceError: `source` cannot be read, or mixes text and ready-made ids.
        StorageError: a file of the dataset exists but cannot be read.
        OptionError: `source` is not a `Source`, `tokenizer` is not a `Tokenizer`, `source` is text and no tokenizer is
            given, or the tokenizer of the chats in `source` cannot encode them.

    >>> import tempfile, nopad
    >>> from nopad.corpus import CorpusOptions, IterableSource
    >>> source = IterableSource([[7, 8, 9], [5], [1, 2]])
    >>> with tempfile.TemporaryDirectory() as out:
    ...     _ = nopad.pack_corpus(source, out, CorpusOptions(capacity=4))
    ...     nopad.verify(out), nopad.verify(out, source=source)
    ([], [])
    """
    for given, wanted, way in ((source, Source, "nopad.open_source"), (tokenizer, Tokenizer, "nopad.load_tokenizer")):
        if given is not None and not isinstance(given, wanted):
            raise OptionError(f"{type(given).__name__} is no {wanted.__name__}; open it with {way}")
    path, monitor = Path(path), monitor or Silent()
    if not path.is_dir():
        made = load_plan(path)
        return made.problems() if isinstance(made, Plan) else made.verify()
    problems: list[str] = []
    halves: list[Half] = []
    folders = split_folders(path)
    for folder in folders or [path]:
        found, half = _dataset_problems(folder, source, tokenizer, monitor)
        problems += [f"{folder.name}: {problem}" if folders else problem for problem in found]
        halves += [half] if half else []
    if folders and not problems:
        problems += pair_problems(halves)
    return problems[:_MOST]


def _dataset_problems(
    folder: Path, source: Source | None, tokenizer: Tokenizer | None, monitor: Monitor
) -> tuple[list[str], Half | None]:
    """Check one dataset; return ``(problems, half)``.

    `problems` has one sentence for each problem. The plan and the files are checked first. The content is checked next,
    if the plan and all files can be read, and no file is missing or damaged or has other columns. Each of these checks
    follows only if no problem was found before:

    * the options
    * if a share of the records was held out, whether each record is in the right one of the two datasets
    * if the source is given, whether the sequences are those that it gives
    * whether assigning the plan again gives the same packs

    `half` holds what is needed to compare the two datasets of a job with a held-out share. It is None for any other
    dataset, and if the manifest, the plan, the files, the content or the options have a problem.
    """
    try:
        manifest = Manifest.load(folder)
    except CorruptError as error:
        return [str(error)], None
    plan, problems = _plan_problems(folder, manifest)
    found, readable = file_problems(folder, manifest, monitor)
    problems += found
    if plan is None or not readable:
        return problems, None
    content, found = read_content(folder, manifest, monitor, hashes=source is not None and manifest.kind == "packed")
    problems += found
    if content is None:
        return problems, None
    problems += content_problems(content, manifest, plan)
    problems += option_problems(content, manifest, plan) if not problems else []
    half = None
    if not problems and manifest.options.get("split"):
        half, problems = half_of(content, manifest)
    if source is not None and not problems:
        problems += source_problems(content, manifest, source, tokenizer, monitor)
    if not problems:
        content.forget_places()  # assigning takes memory, and needs only the lengths
        problems += dealing_problems(content, manifest, plan)
    return problems, half


def _plan_problems(folder: Path, manifest: Manifest) -> tuple[Plan | None, list[str]]:
    """Return ``(plan, problems)``: the stored plan, or None if it cannot be read, and one sentence per problem.

    The plan must be valid. Its checksum, capacity, depth, algorithm and totals must be those that the manifest states.
    """
    try:
        plan = Plan.load(folder / PLAN)
    except FormatError as error:
        return None, [str(error)]
    problems = []
    digest = sha256_file(folder / PLAN)
    if digest != manifest.plan_sha256:
        problems.append(
            f"{PLAN} is not the plan that {MANIFEST} names: SHA-256 {digest}, expected {manifest.plan_sha256}"
        )
    problems += [f"{PLAN}: {problem}" for problem in plan.problems()]
    for name in ("capacity", "depth", "algorithm", "packs", "sequences", "tokens"):
        stated, held = getattr(manifest, name), getattr(plan, name)
        if stated != held:
            problems.append(f"{MANIFEST} states {name} {stated}, {PLAN} has {held}")
    return plan, problems
