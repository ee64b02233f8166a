"""`audit_step`: compare one real training step, with accumulation and ranks, with the same sequences run alone.

Kinds of findings:

* what the collator did: "sequence dropped", "sequence truncated", "tokens added", "labels dropped", "labels added",
  "labels changed";
* what the model did: "contamination", "different from alone", "head fed with rows";
* the mistake that explains the loss: "mean of means", "first token counted", "label across a border", "per sequence",
  "per token", "wrong denominator", "wrong scale";
* others: "not finite", "random", "own dtype", "raised", "unknown".
"""

from nopad.auditing.steps.ranks import Step
from nopad.auditing.steps.run import audit_step
from nopad.auditing.steps.verdict import Finding, MicroBatch, ModuleGradients, StepVerdict

__all__ = ["Finding", "MicroBatch", "ModuleGradients", "Step", "StepVerdict", "audit_step"]
