"""Collators that several tests feed models by."""

from __future__ import annotations

import torch


def blocks(dtype=None):
    """A collator of one row with a right block mask (added, in a dtype) and positions."""

    def collate(features):
        lens = torch.tensor([len(feature["input_ids"]) for feature in features])
        number = torch.repeat_interleave(torch.arange(len(lens)), lens)
        mask = (number[:, None] == number[None, :])[None, None]
        if dtype is not None:
            mask = torch.zeros(mask.shape, dtype=dtype).masked_fill(~mask, torch.finfo(dtype).min)
        positions = torch.cat([torch.arange(n) for n in lens])
        ids = torch.tensor([[token for feature in features for token in feature["input_ids"]]])
        return {"input_ids": ids, "position_ids": positions[None], "attention_mask": mask}

    return collate


def padded(features, left=False, pad=0):
    ids = [torch.tensor(feature["input_ids"]) for feature in features]
    side = "left" if left else "right"
    stack = torch.nn.utils.rnn.pad_sequence
    found = stack(ids, batch_first=True, padding_value=pad, padding_side=side)
    real = stack([torch.ones_like(one) for one in ids], batch_first=True, padding_side=side)
    return {"input_ids": found, "attention_mask": real}
