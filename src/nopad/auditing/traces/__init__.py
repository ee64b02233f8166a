"""`trace`: follow one poisoned token through the layers of a model, and draw which tokens it reaches."""

from nopad.auditing.traces.influence import Trace
from nopad.auditing.traces.run import trace

__all__ = ["Trace", "trace"]
