"""pytorch/examples, imagenet/main.py: ImageFolder, a Compose of v1, torch's DataLoader."""

import torch
from torchvision import datasets, transforms

from bench.switch_scripts.training import parse, train


def make_loader(args):
    normalize = transforms.Normalize(mean=[0.485, 0.456, 0.406], std=[0.229, 0.224, 0.225])
    transform = transforms.Compose(
        [transforms.RandomResizedCrop(args.size), transforms.RandomHorizontalFlip(), transforms.ToTensor(), normalize]
    )
    train_dataset = datasets.ImageFolder(args.data, transform)
    train_loader = torch.utils.data.DataLoader(
        train_dataset, batch_size=args.batch_size, shuffle=True, num_workers=args.workers, pin_memory=args.pin
    )
    return train_loader


if __name__ == "__main__":
    args = parse(__doc__)
    train(args, make_loader(args))
