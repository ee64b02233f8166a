"""`audit_step`: compare one real training step, with accumulation and ranks, with the same sequences run alone.

Kinds of findings (the text of each finding says more):

* what the collator did: "sequence dropped", "sequence truncated", "tokens added", "labels dropped", "labels added",
  "labels changed";
* what the model did: "contamination" (a sequence sees another), "different from alone" (no sequence sees another, but
  outputs differ, as with other positions), "head fed with rows" (a head gives a result per row, not per sequence);
* the mistake that explains the loss: "mean of means" (over micro-batches or ranks), "first token counted" (in the
  denominator), "label across a border" (a last token predicts the next sequence), "per sequence" or "per token" (the
  mean that was not asked for), "wrong denominator", "wrong scale" (such as a missing division by accumulation steps);
* others: "not finite" (the loss), "random" (numbers are drawn besides dropout), "own dtype" (the step is right in
  float64, but not in the model's own dtype), "raised" (an exception), "unknown".
"""

from nopad.auditing.steps.ranks import Step
from nopad.auditing.steps.run import audit_step
from nopad.auditing.steps.verdict import Finding, MicroBatch, ModuleGradients, StepVerdict

__all__ = ["Finding", "MicroBatch", "ModuleGradients", "Step", "StepVerdict", "audit_step"]
