"""facebookresearch/mae, main_pretrain.py: a bicubic crop, DistributedSampler, drop_last."""

import torch
from torchvision import datasets, transforms

from bench.switch_scripts.training import parse, train


def make_loader(args):
    transform_train = transforms.Compose(
        [
            transforms.RandomResizedCrop(args.size, scale=(0.2, 1.0), interpolation=3),  # 3 is bicubic
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize(mean=[0.485, 0.456, 0.406], std=[0.229, 0.224, 0.225]),
        ]
    )
    dataset_train = datasets.ImageFolder(args.data, transform=transform_train)
    sampler_train = torch.utils.data.DistributedSampler(dataset_train, num_replicas=1, rank=0, shuffle=True)
    data_loader_train = torch.utils.data.DataLoader(
        dataset_train,
        sampler=sampler_train,
        batch_size=args.batch_size,
        num_workers=args.workers,
        pin_memory=args.pin,
        drop_last=True,
    )
    return data_loader_train


if __name__ == "__main__":
    args = parse(__doc__)
    train(args, make_loader(args))
