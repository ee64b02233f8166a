"""Does a sequence of a flattened batch see its neighbours? Stock models, transformers' own collator, no flash attention.

``python benchmarks/neighbours.py`` prints the largest difference of a last hidden state from that of the sequence alone,
for three ways to call a model: by default, as transformers' Trainer calls it (no mask, no cache), and with a mask of ones.
"""

from __future__ import annotations

import logging
import warnings
from typing import Any

import torch
import transformers
from transformers import AutoConfig, AutoModel, DataCollatorWithFlattening

SIZES = {
    "vocab_size": 200,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
}
KINDS = {
    "BERT": ("bert", {}),
    "RoBERTa": ("roberta", {"pad_token_id": 1}),
    "ModernBERT": ("modernbert", {"pad_token_id": 0, "cls_token_id": 1, "sep_token_id": 2}),
    "Llama": ("llama", {"num_key_value_heads": 2}),
    "Qwen3": ("qwen3", {"num_key_value_heads": 2, "head_dim": 16}),
}
LENGTHS = (9, 5, 12)


def model_of(kind: str, more: dict[str, Any]) -> Any:
    """Return a model with large random weights, whose attention is far from uniform."""
    torch.manual_seed(0)
    model = AutoModel.from_config(AutoConfig.for_model(kind, **SIZES, **more), attn_implementation="sdpa").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                torch.nn.init.normal_(parameter, std=0.2)
    return model


class Said(logging.Handler):
    """Count what transformers logs as a warning, or worse."""

    count = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Count a record."""
        self.count += 1


def main() -> None:
    """Print a line for each kind of model."""
    said = Said(logging.WARNING)
    transformers.logging.disable_default_handler()
    transformers.logging.add_handler(said)
    generator = torch.Generator().manual_seed(1)
    texts = [torch.randint(3, 200, (length,), generator=generator).tolist() for length in LENGTHS]
    made = DataCollatorWithFlattening(return_tensors="pt")([{"input_ids": ids} for ids in texts])
    batch = {name: value for name, value in made.items() if name in ("input_ids", "position_ids")}
    ones = torch.ones_like(batch["input_ids"])
    print(f"{'model':12}{'default':>10}{'Trainer':>10}{'ones':>10}   warnings")
    for name, (kind, more) in KINDS.items():
        model = model_of(kind, more)
        given = dict(batch)
        if kind == "roberta":  # its positions begin behind the padding id
            given["position_ids"] = batch["position_ids"] + 2
        with torch.no_grad(), warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            said.count = 0
            alone = torch.cat([model(input_ids=torch.tensor([ids])).last_hidden_state[0] for ids in texts])
            ways = (given, given | {"use_cache": False}, given | {"attention_mask": ones})
            if kind not in ("llama", "qwen3"):
                ways = (given, given, ways[2])
            apart = [(model(**way).last_hidden_state[0] - alone).abs().max().item() for way in ways]
        print(f"{name:12}" + "".join(f"{one:10.2g}" for one in apart) + f"   {len(caught) + said.count}")


if __name__ == "__main__":
    main()
