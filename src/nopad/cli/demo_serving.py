"""The last part of the demo: requests that arrive at random times, answered by a runner."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

import numpy as np

from nopad.random import draw, key
from nopad.serving.runner import PackRunner
from nopad.tasks import Embedder

__all__ = ["serving_line"]

LOAD = 0.75  # requests per second / texts per second that the embedder embeds if it gets them as one list


def serving_line(embedder: Embedder, texts: Sequence[str], per_s: float) -> str:
    """Send texts to a runner at random times, and return a line of text about packs, time to the answer, and padding.

    The arrival times follow a Poisson process, with 0.75 times as many texts per second as the embedder can embed.

    Args:
        embedder: the model that answers the requests.
        texts: one text per request.
        per_s: number of texts that the embedder embeds per second if it gets them as one list.
    """
    rate = LOAD * per_s
    latencies: list[float] = []
    with PackRunner(embedder) as runner:
        due = time.perf_counter()
        for number, text in enumerate(texts):
            due += -math.log1p(-draw(key(0), number) / 2**64) / rate
            time.sleep(max(due - time.perf_counter(), 0))
            future = runner.submit(text, over_long="truncate")
            future.add_done_callback(lambda _, due=due: latencies.append(time.perf_counter() - due))  # type: ignore[misc]
        runner.drain()
        seen = runner.statistics
    half, most = np.percentile(latencies, (50, 99)) * 1e3
    return (
        f"{len(texts)} requests at random times, {rate:,.0f} per second: {seen.packer.batches} packs, {half:,.0f} ms "
        f"to the answer (p99 {most:,.0f} ms), {seen.padding_saved:.0%} padding saved"
    )
