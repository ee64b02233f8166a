"""`trace`: poison one token (replace it by another), and draw which tokens change in which layers of a model."""

from nopad.auditing.traces.influence import Trace
from nopad.auditing.traces.run import trace

__all__ = ["Trace", "trace"]
