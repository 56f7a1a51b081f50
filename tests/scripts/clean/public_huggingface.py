# As a loop of transformers without its Trainer: scene parsing with SegFormer.
import logging

import evaluate
import torch
from datasets import load_dataset
from torch import nn
from torch.utils.data import DataLoader
from torchvision.transforms import ColorJitter
from tqdm.auto import tqdm
from transformers import SegformerForSemanticSegmentation, SegformerImageProcessor, get_polynomial_decay_schedule_with_warmup

logger = logging.getLogger(__name__)
CHECKPOINT = "nvidia/mit-b0"


class CFG:
    batch_size = 8
    num_workers = 4
    size = 512
    accumulate = 2
    epochs = 50
    device = torch.device("cuda")


ds = load_dataset("scene_parse_150", split="train[:1000]").train_test_split(test_size=0.2)
image_processor = SegformerImageProcessor.from_pretrained(CHECKPOINT, do_reduce_labels=True)
jitter = ColorJitter(brightness=0.25, contrast=0.25, saturation=0.25, hue=0.1)


def train_transforms(example_batch):
    images = [jitter(x) for x in example_batch["image"]]
    return image_processor(images, list(example_batch["annotation"]), return_tensors="pt")


def val_transforms(example_batch):
    return image_processor(list(example_batch["image"]), list(example_batch["annotation"]), return_tensors="pt")


ds["train"].set_transform(train_transforms)
ds["test"].set_transform(val_transforms)


def collate(rows):
    return {key: torch.stack([row[key] for row in rows]) for key in rows[0]}


options = dict(batch_size=CFG.batch_size, num_workers=CFG.num_workers, pin_memory=True, collate_fn=collate)
train_dataloader = DataLoader(ds["train"], shuffle=True, persistent_workers=True, **options)
eval_dataloader = DataLoader(ds["test"], **options)
model = SegformerForSemanticSegmentation.from_pretrained(CHECKPOINT, num_labels=150).to(CFG.device)
optimizer = torch.optim.AdamW(model.parameters(), lr=6e-5)
lr_scheduler = get_polynomial_decay_schedule_with_warmup(optimizer, 100, CFG.epochs * len(train_dataloader))
metric = evaluate.load("mean_iou")

for epoch in range(CFG.epochs):
    model.train()
    total_loss = 0
    for step, batch in enumerate(tqdm(train_dataloader)):
        batch = {name: value.to(CFG.device, non_blocking=True) for name, value in batch.items()}
        outputs = model(**batch)
        loss = outputs.loss
        total_loss += loss.detach().float()
        loss = loss / CFG.accumulate
        loss.backward()
        if step % CFG.accumulate == 0 or step == len(train_dataloader) - 1:
            optimizer.step()
            lr_scheduler.step()
            optimizer.zero_grad()
    logger.info("epoch %d: %.4f", epoch, total_loss.item() / len(train_dataloader))

    model.eval()
    for step, batch in enumerate(tqdm(eval_dataloader)):
        batch = {name: value.to(CFG.device, non_blocking=True) for name, value in batch.items()}
        with torch.no_grad():
            outputs = model(**batch)
        logits = nn.functional.interpolate(outputs.logits, size=(CFG.size, CFG.size), mode="bilinear")
        metric.add_batch(predictions=logits.argmax(dim=1).cpu(), references=batch["labels"].cpu())
    print(metric.compute(num_labels=150, ignore_index=255))
model.save_pretrained("segformer")
