"""Audits: `audit` checks that a sequence in a pack gets the same results as alone, for any model and collator.

`audit_samples` checks any torch module on any data (graphs, images) with two functions that the user gives.
`audit_step` checks one real training step: collator, loss, denominator and gradients.
"""

from nopad.errors import MissingExtraError, install

try:
    import torch  # noqa: F401
    import transformers  # noqa: F401
except ImportError as error:
    raise MissingExtraError(f"running models needs {error.name}; {install('torch')}") from error

from nopad.auditing.fixes import Change, Fix, find_fix, find_step_fix
from nopad.auditing.run import audit
from nopad.auditing.samples import audit_samples
from nopad.auditing.steps import Finding, Step, StepVerdict, audit_step
from nopad.auditing.traces import Trace, trace
from nopad.auditing.verdict import Check, Verdict

__all__ = [
    "Change",
    "Check",
    "Finding",
    "Fix",
    "Step",
    "StepVerdict",
    "Trace",
    "Verdict",
    "audit",
    "audit_samples",
    "audit_step",
    "find_fix",
    "find_step_fix",
    "trace",
]
