"""Compare the options in a manifest with what plan, files and sequences show of them.

Many options leave no trace in a dataset: whether ``over_long`` was "truncate" cannot be known if no record was too
long. Every trace is compared, so that changed options are noticed as far as possible, even if the checksum of the
manifest was made anew. Comparing a dataset with its source (`nopad.store.verification.source`) shows more.
"""

from __future__ import annotations

import numpy as np

from nopad.corpus import CorpusOptions
from nopad.corpus.pretraining import PREFIX
from nopad.errors import InputError
from nopad.planning import Plan
from nopad.store.manifest import MANIFEST, PLAN, POLICIES, Manifest
from nopad.store.shards import ShardLayout
from nopad.store.verification.content import Content

__all__ = ["option_problems"]

# Counts of records, and the option, with its value, without which they are 0
_CAUSES = {
    "truncated": ("over_long", "truncate"),
    "split": ("over_long", "split"),
    "dropped": ("over_long", "drop"),
    "empty_skipped": ("empty", "skip"),
    "bad_skipped": ("on_bad_record", "skip"),
}


def option_problems(content: Content, m: Manifest, plan: Plan) -> list[str]:
    """Return one sentence for each problem of the options that the manifest states.

    It is a problem if an option of `CorpusOptions` is invalid; then nothing else is checked. It is a problem if an
    option contradicts the plan or the files. If each record held one text or ready-made ids (`_is_plain`), it is also a
    problem if an option contradicts the counts or the sequences.
    """
    try:
        CorpusOptions(capacity=m.capacity, **{name: m.options[name] for name in POLICIES})
    except InputError as error:
        return [f"{MANIFEST} states an option that cannot be: {error}"]
    problems = [
        f"{MANIFEST} states {name} {m.options[name]!r}, {PLAN} has {value!r}"
        for name, value in plan.options.items()
        if m.options.get(name, value) != value
    ]
    if m.kind == "packed" and not _is_divided(m):
        problems.append(f"{MANIFEST} states shard_tokens {m.options.get('shard_tokens')!r}, by which shards are others")
    return problems + (_policy_problems(content, m) if _is_plain(m) else [])


def _is_divided(m: Manifest) -> bool:
    """Return whether packs are divided into shards as the option ``shard_tokens`` in the manifest says."""
    tokens, group = m.options.get("shard_tokens"), m.rows_per_group
    if type(tokens) is not int or tokens < 1 or (group > 1 and group * m.capacity > tokens):
        return False
    layout = ShardLayout(m.packs, group, group * max(1, tokens // (group * m.capacity)))
    return [len(layout.rows(number)) for number in range(layout.shards)] == [shard.packs for shard in m.shards]


def _is_plain(m: Manifest) -> bool:
    """Return whether the manifest shows that each record held one text or ready-made ids.

    The result is False if the manifest has an option of an encoder, a task or pre-training pairs, since these make
    sequences in their own way. It is also False if ``text_unit`` is not stored, as for a source without reader options
    (`IterableSource`).
    """
    made = any(name in ("encoder", "task") or name.startswith(PREFIX) for name in m.options)
    return "text_unit" in m.options and not made


def _policy_problems(content: Content, m: Manifest) -> list[str]:
    problems = [
        f"{MANIFEST} states {count} {m.counts[count]:,}, which takes {name} {value!r}, and has {m.options[name]!r}"
        for count, (name, value) in _CAUSES.items()
        if m.counts[count] and m.options[name] != value
    ]
    for count in ("truncated", "dropped", "stripped"):
        records, tokens = m.counts[count], m.counts[f"{count}_tokens"]
        if tokens < records or (tokens and not records):  # each has lost at least one
            problems.append(
                f"{MANIFEST} states {count} {records:,} and {count}_tokens {tokens:,}, which cannot both be"
            )
    if m.options.get("validation"):  # counts are of both datasets
        return problems
    pieces = _split_records(content)
    if pieces != m.counts["split"]:
        problems.append(f"{MANIFEST} states split {m.counts['split']:,}, the packs hold pieces of {pieces:,} records")
    full = int(np.count_nonzero(content.sequences.seq_lengths == m.capacity))
    if full < m.counts["truncated"]:
        problems.append(
            f"{MANIFEST} states truncated {m.counts['truncated']:,}, the packs hold {full:,} sequences of "
            f"{m.capacity:,} tokens"
        )
    return problems


def _split_records(content: Content) -> int:
    """Return the number of records with several sequences."""
    count, before = 0, (-1, False)  # the record of the last sequence, and whether it was counted
    for chunk in content.chunks():
        record = content.record(chunk)
        again = np.diff(record, prepend=before[0]) == 0
        found = np.unique(record[again])
        counted = before[1] and found.size and found[0] == before[0]
        count += found.size - int(counted)
        last = int(record[-1])
        before = last, bool(found.size and found[-1] == last) or (before[1] and last == before[0])
    return count
