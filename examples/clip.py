"""Trains a small CLIP on images and captions: workers draw one of each image's captions and make its token ids.

python examples/clip.py DIR tokenizer.json [--epochs 3] [--size 224]
python examples/clip.py DIR tokenizer.json --plain    # webdataset and torchvision

DIR is a shard set whose samples have a `txt` member with one caption or more, a line each. tokenizer.json is the file
of a `tokenizers` tokenizer; `transformers.AutoTokenizer.from_pretrained(...).save_pretrained(folder)` writes one.
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import feeder
from feeder import fields, transforms

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
MEAN, STD = (0.481, 0.458, 0.408), (0.269, 0.261, 0.276)


class ImageTower(nn.Sequential):
    """Features [N, width] of images [N, 3, H, W]."""

    def __init__(self, width: int) -> None:
        super().__init__(
            nn.Conv2d(3, width, 8, 8),
            nn.GELU(),
            nn.Conv2d(width, width, 3, padding=1),
            nn.GELU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(width, width),
        )


class TextTower(nn.Module):
    """Features [N, width] of token ids and their mask [N, L]: the mean over the tokens."""

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.out = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width))

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        weights = attention_mask[..., None] / attention_mask.sum(1, keepdim=True)[..., None]
        features: Tensor = self.out((self.tokens(input_ids) * weights).sum(1))
        return features


def contrastive_loss(images: Tensor, texts: Tensor, scale: Tensor) -> Tensor:
    """CLIP's loss: each image's own text among the batch's, and each text's own image."""
    images, texts = nn.functional.normalize(images), nn.functional.normalize(texts)
    logits = scale.exp() * images @ texts.T
    own = torch.arange(len(logits), device=logits.device)
    return (nn.functional.cross_entropy(logits, own) + nn.functional.cross_entropy(logits.T, own)) / 2


def plain_loader(args: argparse.Namespace) -> Any:
    import webdataset as wds
    from tokenizers import Tokenizer
    from torchvision.transforms import v2

    transform = v2.Compose(
        [
            v2.RandomResizedCrop(args.size, scale=(0.9, 1.0)),
            v2.ToImage(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(MEAN, STD),
        ]
    )
    tokenizer = Tokenizer.from_file(args.tokenizer)
    tokenizer.enable_truncation(args.max_length)
    tokenizer.enable_padding(length=args.max_length)

    def tokenize(captions: str) -> dict[str, Tensor]:
        found = tokenizer.encode(random.choice(captions.splitlines()))
        return {"input_ids": torch.tensor(found.ids), "attention_mask": torch.tensor(found.attention_mask)}

    tars = sorted(map(str, Path(args.dir).glob("*.tar")))
    dataset = wds.WebDataset(tars, shardshuffle=100).shuffle(1000).decode("pil")
    dataset = dataset.to_tuple("jpg", args.captions).map_tuple(transform, tokenize)
    return wds.WebLoader(dataset, batch_size=args.batch_size, num_workers=args.workers, drop_last=True)


def loader(args: argparse.Namespace) -> Any:
    transform = transforms.Compose(
        [
            transforms.RandomResizedCrop(args.size, scale=(0.9, 1.0)),
            transforms.ToDtype(torch.float32, scale=True),
            transforms.Normalize(MEAN, STD),
        ]
    )
    captions = fields.Choice(fields.Lines())
    tokens = fields.Tokens(args.tokenizer, max_length=args.max_length, text=captions)
    dataset = feeder.ShardDataset(args.dir, transform, fields={args.captions: tokens})
    return feeder.DataLoader(
        dataset,
        batch_size=args.batch_size,
        shuffle=True,
        drop_last=True,
        num_workers=args.workers,
        persistent_workers=args.workers > 0,
        device=DEVICE,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("dir", help="a folder that `feeder shard` wrote")
    parser.add_argument("tokenizer", help="a tokenizer's JSON")
    parser.add_argument("--plain", action="store_true", help="load by webdataset and torchvision")
    parser.add_argument("--captions", default="txt", help="the member with the captions")
    parser.add_argument("--max-length", type=int, default=77)
    parser.add_argument("--vocabulary", type=int, default=49_408, help="number of ids of the tokenizer")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    torch.manual_seed(0)
    batches = (plain_loader if args.plain else loader)(args)

    width = 64
    image_tower, text_tower = ImageTower(width).to(DEVICE), TextTower(args.vocabulary, width).to(DEVICE)
    scale = nn.Parameter(torch.tensor(2.0, device=DEVICE))
    parameters = [*image_tower.parameters(), *text_tower.parameters(), scale]
    optimizer = torch.optim.AdamW(parameters, lr=2e-3)
    for epoch in range(args.epochs):
        total, steps = torch.zeros((), device=DEVICE), 0
        for batch in batches:
            images, tokens = batch[0].to(DEVICE), {name: ids.to(DEVICE) for name, ids in batch[-1].items()}
            loss = contrastive_loss(image_tower(images), text_tower(**tokens), scale)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach()
            steps += 1
        print(f"epoch {epoch}: loss {total.item() / steps:.3f}")


if __name__ == "__main__":
    main()
