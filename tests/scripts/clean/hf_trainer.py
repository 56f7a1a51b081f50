from datasets import load_dataset
from transformers import AutoModelForImageClassification, Trainer, TrainingArguments

dataset = load_dataset("beans")
model = AutoModelForImageClassification.from_pretrained("google/vit-base-patch16-224")
arguments = TrainingArguments(
    output_dir="out",
    bf16=True,
    dataloader_num_workers=8,
    dataloader_persistent_workers=True,
)


def metrics(prediction):
    return {"accuracy": (prediction.predictions.argmax(1) == prediction.label_ids).mean().item()}


trainer = Trainer(model, arguments, train_dataset=dataset["train"], compute_metrics=metrics)
trainer.train()
