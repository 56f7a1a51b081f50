"""facebookresearch/dino, main_dino.py: two large views and six small ones, made by a function of its own."""

import random

import torch
from PIL import Image, ImageFilter, ImageOps
from torchvision import datasets, transforms

from bench.switch_scripts.training import parse, train


class GaussianBlur:
    def __init__(self, p=0.5, radius_min=0.1, radius_max=2.0):
        self.prob = p
        self.radius_min = radius_min
        self.radius_max = radius_max

    def __call__(self, img):
        if random.random() > self.prob:
            return img
        return img.filter(ImageFilter.GaussianBlur(radius=random.uniform(self.radius_min, self.radius_max)))


class Solarization:
    def __init__(self, p):
        self.p = p

    def __call__(self, img):
        return ImageOps.solarize(img) if random.random() < self.p else img


class DataAugmentationDINO:
    def __init__(self, size, local_crops_number=6):
        flip_and_color_jitter = transforms.Compose(
            [
                transforms.RandomHorizontalFlip(p=0.5),
                transforms.RandomApply(
                    [transforms.ColorJitter(brightness=0.4, contrast=0.4, saturation=0.2, hue=0.1)], p=0.8
                ),
                transforms.RandomGrayscale(p=0.2),
            ]
        )
        normalize = transforms.Compose(
            [transforms.ToTensor(), transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))]
        )
        small = size * 96 // 224
        self.global_transfo1 = transforms.Compose(
            [
                transforms.RandomResizedCrop(size, scale=(0.4, 1.0), interpolation=Image.BICUBIC),
                flip_and_color_jitter,
                GaussianBlur(1.0),
                normalize,
            ]
        )
        self.global_transfo2 = transforms.Compose(
            [
                transforms.RandomResizedCrop(size, scale=(0.4, 1.0), interpolation=Image.BICUBIC),
                flip_and_color_jitter,
                GaussianBlur(0.1),
                Solarization(0.2),
                normalize,
            ]
        )
        self.local_crops_number = local_crops_number
        self.local_transfo = transforms.Compose(
            [
                transforms.RandomResizedCrop(small, scale=(0.05, 0.4), interpolation=Image.BICUBIC),
                flip_and_color_jitter,
                GaussianBlur(p=0.5),
                normalize,
            ]
        )

    def __call__(self, image):
        crops = []
        crops.append(self.global_transfo1(image))
        crops.append(self.global_transfo2(image))
        for _ in range(self.local_crops_number):
            crops.append(self.local_transfo(image))
        return crops


def make_loader(args):
    transform = DataAugmentationDINO(args.size)
    dataset = datasets.ImageFolder(args.data, transform=transform)
    data_loader = torch.utils.data.DataLoader(
        dataset,
        shuffle=True,
        batch_size=args.batch_size,
        num_workers=args.workers,
        pin_memory=args.pin,
        drop_last=True,
    )
    return data_loader


if __name__ == "__main__":
    args = parse(__doc__)
    train(args, make_loader(args))
