"""`stacked`: lists of ids as sequences, and the record of one without a token."""

from __future__ import annotations

import pytest

from nopad.errors import LengthError
from nopad.tasks.examples import stacked


def test_lists_become_columns():
    found = stacked([[7, 8], [9]], [0, 2], tokens={"labels": [[1, 2], [3]]}, values={"score": [0.5, 1.0]})
    assert found.seq_lengths.tolist() == [2, 1]
    assert {name: column.tolist() for name, column in found.tokens.items()} == {
        "input_ids": [7, 8, 9],
        "labels": [1, 2, 3],
    }
    assert found.values["score"].tolist() == [0.5, 1.0]


def test_an_empty_sequence_is_named_by_its_record():
    """It was named by its place among the sequences, of which a record that is split has several."""
    with pytest.raises(LengthError, match="record 4 has no token; leave it out"):
        stacked([[7], [8], [], [9]], [0, 0, 4, 5])
