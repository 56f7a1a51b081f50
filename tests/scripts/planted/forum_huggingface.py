"""Finetune transformers on food101 without their Trainer (I want to understand each step)"""
import os

import evaluate
import torch
from datasets import load_dataset
from torch.optim import AdamW
from torch.utils.data import DataLoader
from torchvision.transforms import Compose, Normalize, RandomResizedCrop, Resize, ToTensor
from tqdm.auto import tqdm
from transformers import AutoImageProcessor, AutoModelForImageClassification, get_scheduler

checkpoint = "google/vit-base-patch16-224-in21k"
device = "cuda" if torch.cuda.is_available() else "cpu"

food = load_dataset("food101", split="train[:5000]")
food = food.train_test_split(test_size=0.2)
labels = food["train"].features["label"].names

processor = AutoImageProcessor.from_pretrained(checkpoint)
_transforms = Compose([
    Resize((640, 640)),  # expect: resized-twice
    RandomResizedCrop(224),
    ToTensor(),
    Normalize(mean=processor.image_mean, std=processor.image_std),
])


def transforms(examples):
    examples["pixel_values"] = [_transforms(img.convert("RGB")).to(device) for img in examples["image"]]  # missed: device-in-dataset
    del examples["image"]
    return examples


food = food.with_transform(transforms)


def collate_fn(examples):
    pixel_values = torch.stack([e["pixel_values"] for e in examples])
    labels = torch.tensor([e["label"] for e in examples])
    return {"pixel_values": pixel_values, "labels": labels}


model = AutoModelForImageClassification.from_pretrained(checkpoint, num_labels=len(labels)).to(device)
optimizer = AdamW(model.parameters(), lr=5e-5)
num_epochs = 3
eval_dataloader = DataLoader(food["test"], batch_size=32, collate_fn=collate_fn)  # expect: num-workers, pin-memory
lr_scheduler = get_scheduler("linear", optimizer=optimizer, num_warmup_steps=0, num_training_steps=num_epochs * 250)
metric = evaluate.load("accuracy")

train_losses = []
for epoch in range(num_epochs):
    train_dataloader = DataLoader(food["train"], shuffle=True, batch_size=16, collate_fn=collate_fn, num_workers=2 * os.cpu_count())  # expect: loader-in-epoch, too-many-workers, pin-memory
    model.train()
    for batch in tqdm(train_dataloader):
        batch = {k: v.to(device) for k, v in batch.items()}  # expect: blocking-copy
        outputs = model(**batch)
        loss = outputs.loss
        loss.backward()
        optimizer.step()
        lr_scheduler.step()
        optimizer.zero_grad()
        train_losses.append(loss)  # expect: kept-graph

    model.eval()
    for batch in eval_dataloader:
        batch = {k: v.to(device) for k, v in batch.items()}
        outputs = model(**batch)  # expect: no-grad
        predictions = torch.argmax(outputs.logits, dim=-1)
        metric.add_batch(predictions=predictions, references=batch["labels"])
    print(epoch, metric.compute())
