"""A million requests through one runner: every answer is right, and memory stays where it was.

Fewer requests take less time: ``NOPAD_SOAK_REQUESTS=100000 make soak ARGS=tests/serving/test_soak.py``.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

REQUESTS = int(os.environ.get("NOPAD_SOAK_REQUESTS", 1_000_000))
CODE = """
import collections, random, sys
import torch
from transformers import BertConfig, BertModel
import nopad
from nopad.serving import Batching

def anonymous():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("RssAnon:"))

count = int(sys.argv[1])
torch.set_num_threads(1)
torch.manual_seed(0)
sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
model = nopad.packed(BertModel(BertConfig(**sizes, vocab_size=50, max_position_embeddings=16)).eval())
draw, sizes = random.Random(0), []
with nopad.PackRunner(model, Batching(capacity=512, max_waiting_tokens=4096)) as runner:
    kinds = [[draw.randrange(50) for _ in range(1 + n % 15)] for n in range(60)]
    alone = [runner({"input_ids": ids})["pooler_output"] for ids in kinds]
    waiting, cancelled, wrong = collections.deque(), 0, 0

    def collect():
        global wrong
        kind, future = waiting.popleft()
        if not future.cancelled():
            wrong += not torch.allclose(future.result(60)["pooler_output"], alone[kind], rtol=0, atol=1e-6)

    for number in range(count):
        kind = draw.randrange(len(kinds))
        future = runner.submit({"input_ids": kinds[kind]}, priority=draw.randrange(3))
        if number % 50 == 0:
            cancelled += future.cancel()
        waiting.append((kind, future))
        if len(waiting) > 300:
            collect()
        if number % (count // 50) == 0:
            sizes.append(anonymous())
    while waiting:
        collect()
    seen = runner.statistics
assert wrong == 0, wrong
assert seen.failed == 0 and seen.answered + cancelled == count + len(kinds), (seen, cancelled)
assert seen.packer.waiting == 0
early, late = max(sizes[5:10]), max(sizes[-5:])
print(early, late, late / early)
"""


@pytest.mark.soak
def test_memory_after_a_million_requests():
    done = subprocess.run([sys.executable, "-c", CODE, str(REQUESTS)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    early, late, _ = map(float, done.stdout.split())
    assert late <= 1.02 * early, done.stdout
