"""memgauge monitor -o run.mg -- python examples/with_transformers.py."""

import tempfile

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

from memgauge.callbacks.transformers import MemoryPhases

size = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128}
model = BertForSequenceClassification(BertConfig(vocab_size=1000, **size))
rows = [{"input_ids": torch.randint(0, 1000, (32,)), "labels": torch.tensor(i % 2)} for i in range(64)]

with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        folder,
        num_train_epochs=2,
        per_device_train_batch_size=8,
        eval_strategy="epoch",
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = Trainer(
        model, arguments, train_dataset=rows, eval_dataset=rows[:16], callbacks=[MemoryPhases()]
    )
    trainer.train()
