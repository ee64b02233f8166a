"""`Fix`: the changes that make an audit pass, each with its lines of code."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from nopad.auditing.steps.verdict import StepVerdict
from nopad.auditing.verdict import Verdict
from nopad.wording import counted

__all__ = ["Change", "Fix"]


@dataclass(frozen=True)
class Change:
    """One change of a collator, model or loss that `find_fix` or `find_step_fix` can try.

    Attributes:
        name: a short name, such as "position_ids".
        why: what is wrong without it.
        code: the lines of code. Those of a collator use the variables `batch` (what the collator returned), `features`
            (its argument), `model` and `torch`. Some also use `number`, int64 ``[R, L]``: the index of each token's
            sequence, -1 in padding. Those of a model use the variable `model`. Those of a loss are the body of a
            function of `model`, `batch` and `step`.
        where: where the code belongs: "collator" (at its end), "model" (after it is loaded), "loss" (in place of the
            loss), or "instead" (in place of the collator).

    >>> from nopad.auditing import Change
    >>> Change("use_cache", "with a cache, borders are not looked for", 'batch["use_cache"] = False').where
    'collator'
    """

    name: str
    why: str
    code: str
    where: str = "collator"


@dataclass(frozen=True, kw_only=True)
class Fix:
    """The result of `find_fix` or `find_step_fix`.

    Attributes:
        changes: the changes that make the audit pass. None of them can be left out, but there may be a smaller set of
            other changes. Empty if the audit passes without changes, or if no such changes were found.
        verdict: the verdict of the audit with these changes; if there are none, of the audit without changes.
        tried: number of sets of changes that were tried.
        nearest: if `find_step_fix` found no changes with which the step passes, the changes that remove most of what is
            wrong; empty if none removes anything.
        nearly: what the changes in `nearest` remove, and what remains wrong, as text.

    One line for the collator is enough here. It switches off the cache, with which this model does not see where
    sequences begin:

    >>> import nopad.auditing
    >>> from transformers import DataCollatorWithFlattening, LlamaConfig, LlamaForCausalLM
    >>> sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    >>> model = LlamaForCausalLM(LlamaConfig(vocab_size=64, **sizes))
    >>> fix = nopad.auditing.find_fix(model, collator=DataCollatorWithFlattening(return_tensors="pt"))
    >>> fix.found, [change.code for change in fix.changes]
    (True, ['batch["use_cache"] = False'])
    """

    changes: Sequence[Change]
    verdict: Verdict | StepVerdict
    tried: int
    nearest: Sequence[Change] = ()
    nearly: str = ""

    @property
    def found(self) -> bool:
        """Whether the audit passes with `changes`; if `changes` is empty, whether it passes without any."""
        return self.verdict.isolated if isinstance(self.verdict, Verdict) else self.verdict.passed

    @property
    def code(self) -> str:
        """The lines of code of all changes, in the order of `changes`; "" without changes."""
        return "\n".join(change.code for change in self.changes)

    def to_dict(self) -> dict[str, Any]:
        """Return the result as plain dicts and lists, without the verdict.

        The keys are "found", "tried" and "changes". If `nearest` is not empty, "nearest" and "nearly" are added.
        """
        changes, nearest = (
            [{"name": c.name, "why": c.why, "code": c.code, "where": c.where} for c in some]
            for some in (self.changes, self.nearest)
        )
        found = {"found": self.found, "tried": self.tried, "changes": changes}
        return found | ({"nearest": nearest, "nearly": self.nearly} if nearest else {})

    def to_json(self) -> str:
        """Return the result of `to_dict` as JSON text."""
        return json.dumps(self.to_dict(), indent=1)

    def __str__(self) -> str:
        if not self.found:
            said = f"fix: none of {counted(self.tried, 'set')} of changes makes the audit pass"
            return "\n".join([said, *([f"  {self.nearly}"] if self.nearly else []), *_written(self.nearest)])
        if not self.changes:
            return "fix: none is needed, the audit passes"
        lines = [f"fix: with {counted(len(self.changes), 'change')} the audit passes ({self.tried} tried)"]
        return "\n".join([*lines, *_written(self.changes)])


def _written(changes: Sequence[Change]) -> Iterator[str]:
    for change in changes:
        yield f"  {change.name}, {PLACES[change.where]}: {change.why}"
        yield from (f"    {line}" for line in change.code.splitlines())


PLACES = {
    "collator": "at the end of the collator",
    "model": "once, after the model is loaded",
    "loss": "in place of the loss",
    "instead": "in place of the collator",
}
