"""What tests of serving share: a gate before a model, so that requests wait, and answers of a queue without runner."""

from __future__ import annotations

import threading

from nopad.serving.answer import Answer, Answerer

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


def of_queue(queue):
    """The future of a request of a queue that has no runner, and whose worker is nobody."""
    return Answer(Answerer(worker=threading.Thread(), lock=queue.lock, model=lambda: None))
