"""`find_fix` and `find_step_fix`: which changes of a user's collator, model or loss make an audit pass."""

from nopad.auditing.fixes.fix import Change, Fix
from nopad.auditing.fixes.run import find_fix
from nopad.auditing.fixes.steps import find_step_fix

__all__ = ["Change", "Fix", "find_fix", "find_step_fix"]
