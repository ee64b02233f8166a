"""The search for changes of a step, on audits that are made up."""

from __future__ import annotations

from types import SimpleNamespace

from nopad.auditing.fixes.fix import Change
from nopad.auditing.fixes.search import Search
from nopad.store.monitor import Silent

CHANGES = {name: Change(name, "", "") for name in "abcd"}


def test_none_of_the_changes_can_be_left_out():
    """Also where one is needed only as long as another is made: b, c and d fail together, c and d do not."""
    wrong = {"": 4, "a": 3, "ab": 2, "abc": 1} | dict.fromkeys(("abcd", "acd", "cd"), 0)

    def audited(changes):
        left = wrong.get("".join(change.name for change in changes), 4)
        kinds = ("raised", "contamination", "different from alone", "unknown")[4 - left :] if left else ()
        found = [SimpleNamespace(kind=kind) for kind in kinds]
        return SimpleNamespace(passed=not found, findings=found, first_difference=None)

    search = Search(audited, audited(()), [[change] for change in CHANGES.values()], (), Silent())
    search._pairs = list  # which would be tried later
    fix = search.fix()
    assert "".join(change.name for change in fix.changes) == "cd"
    tried = {tuple(change.name for change in changes) for changes in search.seen}
    assert {("c",), ("d",)} <= tried
