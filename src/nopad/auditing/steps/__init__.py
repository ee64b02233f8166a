"""`audit_step`: one real training step, with accumulation and ranks, against the same sequences alone.

Kinds of findings: "sequence dropped", "sequence truncated", "tokens added", "labels dropped", "labels added", "labels
changed" (what the collator did); "contamination", "head fed with rows" (what the model did); "mean of means", "first
token counted", "label across a border", "per sequence", "per token", "wrong denominator", "wrong scale" (what the loss
equals); "not finite", "random", "own dtype", "raised", "unknown".
"""

from nopad.auditing.steps.ranks import Step
from nopad.auditing.steps.run import audit_step
from nopad.auditing.steps.verdict import Finding, MicroBatch, ModuleGradients, StepVerdict

__all__ = ["Finding", "MicroBatch", "ModuleGradients", "Step", "StepVerdict", "audit_step"]
