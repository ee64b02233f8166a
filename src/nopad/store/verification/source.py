"""Compare a dataset with its source, by making all sequences from the source again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nopad.corpus import CHAIN_START, CorpusOptions, Counts, Group, Source, Tokenizer, chain, sequences
from nopad.corpus.lengths import LengthsFile
from nopad.errors import LengthError, RecordError
from nopad.sequences import Sequences
from nopad.store.manifest import MANIFEST, POLICIES, Manifest
from nopad.store.monitor import Monitor
from nopad.store.verification.chosen import Chosen
from nopad.store.verification.content import Content, hashes_of

__all__ = ["source_problems"]


def source_problems(
    content: Content, m: Manifest, source: Source, tokenizer: Tokenizer | None, monitor: Monitor
) -> list[str]:
    """Make all sequences from the source again, and return how they differ from those in the dataset.

    Args:
        content: the sequences in the dataset; if it has hashes, these are compared too.
        m: the manifest of the dataset.
        source: the source from which the dataset was packed.
        tokenizer: the tokenizer with which the dataset was packed; not used if the source holds ready-made ids.
        monitor: receives the progress.

    The result is a list of sentences, empty if there is no difference. The comparison stops at the first sequence that
    differs. For an index, and for a source that is a file of lengths, no tokens are compared.

    Raises:
        SourceError: the source cannot be read, or mixes text and ready-made ids.
        FormatError: the tokenizer cannot encode a text.
        OptionError: the source holds text, and `tokenizer` is None; or the tokenizer of its chats cannot encode them.
    """
    chosen = Chosen(m)
    if isinstance(source, LengthsFile):
        given = np.asarray(source.lengths)
        chosen.add(np.arange(given.size), given)
        try:
            numbers = chosen.numbers({"": Counts(records=given.size)})
        except RecordError as error:  # too few to hold out a share
            return [f"this is not the source that was packed: {error}"]
        same = np.array_equal(content.sequences.seq_lengths, given[numbers])
        return [] if same else ["the lengths in the packs are not those of the source"]
    tokenizer = None if source.kind == "ids" else tokenizer
    return _setting_problems(m, source, tokenizer) or _content_problems(content, m, source, tokenizer, chosen, monitor)


def _setting_problems(m: Manifest, source: Source, tokenizer: Tokenizer | None) -> list[str]:
    """Return a list with one sentence about settings that differ from those of the packing job; [] if none do.

    These are compared: the settings by which the source is read; the columns that are packed along (not for an index);
    and the tokenizer. Only the first of them that differs is reported.
    """
    opened = {name: (m.options.get(name), value) for name, value in source.settings().items()}
    other = [f"{name} was {was}, now {now}" for name, (was, now) in opened.items() if was != now]
    if other:
        return [f"the source was read in another way when it was packed: {'; '.join(other)}"]
    carried = {column.name: column.per for column in source.carried}
    if m.kind == "packed" and carried != m.carried:
        return [
            f"other columns were carried when it was packed: {_listed(m.carried)}; this source has {_listed(carried)}"
        ]
    expected = m.tokenizer and m.tokenizer["sha256"]
    if tokenizer is not None and tokenizer.fingerprint != expected:
        return [
            f"packed with another tokenizer than {tokenizer.name}: SHA-256 {expected}, this one has "
            f"{tokenizer.fingerprint}; give the one it was packed with (tokenizer=)"
        ]
    return []


def _content_problems(
    content: Content, m: Manifest, source: Source, tokenizer: Tokenizer | None, chosen: Chosen, monitor: Monitor
) -> list[str]:
    """Make all sequences from the source again; return how they differ from the dataset's, one sentence per difference.

    At the first sequence that differs, the comparison stops. Otherwise the number of sequences and the source's
    fingerprint are compared; if these agree too, the counts. `content` has the sequences of the dataset, and `m` is its
    manifest. `chosen` is new, and collects the sequences of the source. `tokenizer` is None if the source holds
    ready-made ids.
    """
    problems: list[str] = []
    options = CorpusOptions(capacity=m.capacity, **{name: m.options[name] for name in POLICIES})
    monitor.stage("comparing with the source", source.total_bytes, "bytes")
    digest, at, size, by_source = CHAIN_START, 0, 0, dict.fromkeys(source.names, Counts())
    for group in _groups(source, tokenizer, options, problems):
        by_source[group.blocks[0].source] += group.counts
        for block in group.blocks:
            digest = chain(digest, block)
            size += block.size
            monitor.advance(block.progress)
        chosen.add(group.batch.values["seq_index"], group.batch.seq_lengths)
        batch = chosen.present(group.batch, content, at)
        if difference := _difference(content, batch, at):
            return [difference]
        at += len(batch)
    if at != len(content):
        problems.append(f"the source gives {at:,} sequences, the packs hold {len(content):,}")
    if digest.hex() != m.source["sha256"]:
        renamed = not problems and m.kind == "packed"
        agree = "every sequence agrees, but files have other names, or are stored otherwise: " if renamed else ""
        problems.append(
            f"{agree}this is not the source that was packed: fingerprint {digest.hex()}, expected {m.source['sha256']}"
        )
    return problems or _count_problems(content, m, chosen, by_source, size)


def _difference(content: Content, batch: Sequences, at: int) -> str:
    """Return a sentence about a sequence of a batch that differs from the dataset's; "" if none does.

    It is about the first sequence that differs in record, start, length or tokens. If none does, it is about the first
    column packed along whose values differ, and the first sequence that differs there. The batch was made from the
    source again. Its first sequence should be number `at` of `content`, the dataset's sequences in source order.
    """
    here = slice(at, at + len(batch))
    records: list[tuple[NDArray[Any], NDArray[Any]]] = [
        (content.record(here), batch.values["seq_index"]),
        (content.start(here), batch.values["seq_start"]),
        (content.sequences.seq_lengths[here], batch.seq_lengths),
    ]
    compared = {"the tokens": records}
    for name, hashes in hashes_of(batch).items() if content.hashes else ():
        what = "the tokens" if name == "input_ids" else f"the values of {name!r}"
        compared.setdefault(what, []).append((content.hashes[name][here], hashes))
    for what, pairs in compared.items():
        i = _first_difference(pairs)
        if i is not None:
            record, start = batch.values["seq_index"][i], batch.values["seq_start"][i]
            return f"record {record}, piece from token {start}: not {what} that this source gives"
    return ""


def _listed(columns: Mapping[str, str]) -> str:
    return ", ".join(f"{name!r} (per {per})" for name, per in columns.items()) or "none"


def _count_problems(
    content: Content, m: Manifest, chosen: Chosen, by_source: dict[str, Counts], size: int
) -> list[str]:
    """Compare the dataset with the counts of reading its source again; return one sentence per difference.

    The counts in the manifest are compared, and, if a share was held out, which records the dataset holds. If the names
    of the sources or these records differ, only that is reported. `chosen` has collected all sequences of the source.
    `by_source` has the `Counts` of each whole source, by name; `size` is the number of bytes read.
    """
    problems: list[str] = []
    names = [part["name"] for part in m.sources] if m.sources else [""]
    if names != list(by_source):
        return [f"packed from the sources {', '.join(names)}, and these are {', '.join(by_source)}"]
    if chosen.partly:
        if not np.array_equal(chosen.records(by_source), content.record(slice(None))):
            return [f"these are not the records that seed {m.seed} and the share held out choose"]
        by_source = chosen.counts(by_source)
    stated: list[tuple[str, Mapping[str, Any], dict[str, int]]] = []
    total = sum(by_source.values(), Counts()).to_dict()
    stated.append(("", {**m.counts, "bytes": m.source["bytes"]}, {**total, "bytes": size}))
    for part in m.sources:
        stated.append((f" of {part['name']!r}", part, by_source[part["name"]].to_dict()))
    for where, says, made in stated:
        problems += [
            f"{MANIFEST} states {says[name]:,} {name}{where}, the source gives {made[name]:,}"
            for name in made
            if says[name] != made[name]
        ]
    return problems


def _groups(
    source: Source, tokenizer: Tokenizer | None, options: CorpusOptions, problems: list[str]
) -> Iterator[Group]:
    """Yield the groups of sequences that are made from the source again.

    If a record is met that the job would have refused, its error is added to `problems` as a sentence, and nothing more
    is yielded.
    """
    try:
        yield from sequences(source.blocks(), tokenizer, options)
    except (RecordError, LengthError) as error:  # those of a task are of both kinds
        problems.append(f"this is not the source that was packed: {error}")


def _first_difference(pairs: list[tuple[NDArray[Any], NDArray[Any]]]) -> int | None:
    """Return the smallest index at which the two arrays of any pair differ; None if all pairs are equal.

    The first array of a pair may be shorter than the second; then they differ from where the first one ends.
    """
    n = min(packed.size for packed, _ in pairs)
    different = np.zeros(pairs[0][1].size, dtype=bool)
    different[n:] = True
    for packed, made in pairs:
        different[:n] |= packed[:n] != made[:n]
    return int(different.argmax()) if different.any() else None
