"""`trace`: replace one token (poison it), follow this through the layers of a model, and draw which tokens change."""

from nopad.auditing.traces.influence import Trace
from nopad.auditing.traces.run import trace

__all__ = ["Trace", "trace"]
