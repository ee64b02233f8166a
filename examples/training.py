"""`torchrun --nproc-per-node 2 examples/training.py`: a training loop of one's own, on any number of ranks."""

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from transformers import LlamaConfig, LlamaForCausalLM

import nopad
from nopad.loading import causal
from nopad.losses import over_ranks, token_denominator

dist.init_process_group("gloo")
torch.manual_seed(0)
sequences = [np.arange(length) % 50 for length in np.random.default_rng(0).integers(2, 64, size=201)]
loader = nopad.PackedLoader(sequences, capacity=64, rows=4, last="short", collate=causal)
config = LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2)
model = DistributedDataParallel(nopad.packed(LlamaForCausalLM(config)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for epoch in range(3):
    for batch in loader:  # on a GPU: batch.to("cuda")
        counted = over_ranks(token_denominator(batch["labels"], batch, causal=True))  # labels on all ranks
        loss = model(**batch, num_items_in_batch=counted).loss * dist.get_world_size()  # DDP takes the mean over ranks
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    if loader.ranks.rank == 0:
        print(f"epoch {epoch}: loss {loss:.3f}, {loader.sequences_seen} sequences in {loader.steps_seen} steps")
dist.barrier()  # a rank that leaves early would break what the others still do
dist.destroy_process_group()
