"""`audit`: does a sequence in a pack get what it gets alone? Of any model and any collator, ours or not."""

from nopad.auditing.run import audit
from nopad.auditing.verdict import Check, Verdict

__all__ = ["Check", "Verdict", "audit"]
