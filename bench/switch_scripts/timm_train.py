"""timm's train.py: its dataset, its transform with rand-m9-mstd0.5-inc1 and erasing, in torch's DataLoader."""

import timm.data
import torch

from bench.switch_scripts.training import parse, train


def make_loader(args):
    dataset = timm.data.create_dataset("", args.data)
    dataset.transform = timm.data.create_transform(
        args.size, is_training=True, auto_augment="rand-m9-mstd0.5-inc1", re_prob=0.25, re_mode="pixel"
    )
    loader = torch.utils.data.DataLoader(
        dataset,
        batch_size=args.batch_size,
        shuffle=True,
        num_workers=args.workers,
        pin_memory=args.pin,
        drop_last=True,
    )
    return loader


if __name__ == "__main__":
    args = parse(__doc__)
    train(args, make_loader(args))
