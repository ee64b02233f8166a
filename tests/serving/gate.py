"""A gate before a model, for tests that need requests to wait."""

from __future__ import annotations

import threading

WAIT = 60  # seconds; no test takes so long unless something hangs


class Gate:
    """Holds the model at the beginning of a call until it is opened; counts its calls."""

    def __init__(self, model, shut=True):
        self.open, self.entered, self.calls = threading.Event(), threading.Event(), 0
        if not shut:
            self.open.set()
        model.register_forward_pre_hook(self)

    def __call__(self, module, arguments):
        self.calls += 1
        self.entered.set()
        assert self.open.wait(WAIT)
