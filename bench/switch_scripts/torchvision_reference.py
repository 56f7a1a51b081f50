"""torchvision's references/classification/train.py: its preset of v2, TrivialAugment and erasing, RandomSampler."""

import torch
import torchvision
from torchvision.transforms import v2 as transforms

from bench.switch_scripts.training import parse, train


def preset(size):
    return transforms.Compose(
        [
            transforms.RandomResizedCrop(size, antialias=True),
            transforms.RandomHorizontalFlip(0.5),
            transforms.TrivialAugmentWide(),
            transforms.PILToTensor(),
            transforms.ToDtype(torch.float, scale=True),
            transforms.Normalize(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)),
            transforms.RandomErasing(p=0.1),
            transforms.ToPureTensor(),
        ]
    )


def make_loader(args):
    dataset = torchvision.datasets.ImageFolder(args.data, preset(args.size))
    sampler = torch.utils.data.RandomSampler(dataset)
    data_loader = torch.utils.data.DataLoader(
        dataset, batch_size=args.batch_size, sampler=sampler, num_workers=args.workers, pin_memory=args.pin
    )
    return data_loader


if __name__ == "__main__":
    args = parse(__doc__)
    train(args, make_loader(args))
