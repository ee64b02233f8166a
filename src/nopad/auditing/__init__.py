"""`audit`: check that a sequence in a pack gets the result it gets alone, for any model and any collator."""

from nopad.auditing.run import audit
from nopad.auditing.verdict import Check, Verdict

__all__ = ["Check", "Verdict", "audit"]
