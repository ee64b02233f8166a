from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from nopad.sequences import Sequences


def lists(made: Sequences) -> list[list[int]]:
    """Each sequence's ids, read by `begins` alone."""
    return [
        made.tokens["input_ids"][begin : begin + n].tolist()
        for begin, n in zip(made.begins.tolist(), made.seq_lengths.tolist(), strict=True)
    ]


def build(lengths: list[int]) -> Sequences:
    n = np.array(lengths, np.int32)
    names = pa.array([f"s{i}" for i in range(n.size)])
    tokens = {"input_ids": np.arange(n.sum()), "weight": np.arange(n.sum()) / 2}
    return Sequences(
        seq_lengths=n,
        tokens=tokens,
        values={"number": np.arange(n.size), "name": names, "pair": np.arange(2 * n.size).reshape(-1, 2)},
    )


@given(st.lists(st.integers(0, 5), max_size=9), st.data())
def test_any_choice_holds_the_sequences_it_names(lengths, data):
    made, whole = build(lengths), lists(build(lengths))
    numbers = data.draw(st.lists(st.integers(0, max(len(lengths) - 1, 0)), max_size=6 if lengths else 0))
    chosen = made.take(np.array(numbers, np.int64))
    ends = data.draw(st.tuples(st.integers(0, len(numbers)), st.integers(0, len(numbers))).map(sorted))
    for found, which in (
        (chosen, numbers),
        (chosen.gathered(), numbers),
        (chosen.part(*ends), numbers[slice(*ends)]),
        (chosen.gathered().part(*ends), numbers[slice(*ends)]),
        (chosen.part(*ends).gathered().take(np.arange(ends[1] - ends[0])), numbers[slice(*ends)]),
    ):
        assert lists(found) == [whole[i] for i in which]
        assert found.values["number"].tolist() == which
        assert found.values["pair"].tolist() == [[2 * i, 2 * i + 1] for i in which]
        assert found.values["name"].to_pylist() == [f"s{i}" for i in which]
    ids, weight = (chosen.gathered().tokens[name] for name in ("input_ids", "weight"))
    assert (ids / 2).tolist() == weight.tolist()


def test_a_part_of_a_mapped_corpus_copies_no_tokens():
    made = build([3, 2, 4])
    assert made.take(np.array([2, 0])).tokens["input_ids"] is made.tokens["input_ids"]
    assert np.shares_memory(made.part(1, 3).tokens["input_ids"], made.tokens["input_ids"])
    assert made.gathered() is made
