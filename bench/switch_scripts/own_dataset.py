"""A Dataset class of one's own: rows of a table, an image opened in ``__getitem__``, a dict a sample."""

from pathlib import Path

import torch
from PIL import Image
from torchvision import transforms

from bench.switch_scripts.training import parse, train


class Photos(torch.utils.data.Dataset):
    def __init__(self, root, transform):
        self.paths = sorted(path for path in Path(root).rglob("*") if path.is_file())
        names = sorted({path.parent.name for path in self.paths})
        self.labels = [names.index(path.parent.name) for path in self.paths]
        self.transform = transform

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, i):
        image = self.transform(Image.open(self.paths[i]).convert("RGB"))
        return {"image": image, "label": self.labels[i], "row": i}


def make_loader(args):
    transform = transforms.Compose(
        [
            transforms.RandomResizedCrop(args.size),
            transforms.RandomHorizontalFlip(),
            transforms.ColorJitter(0.4, 0.4, 0.4),
            transforms.ToTensor(),
            transforms.Normalize(mean=[0.485, 0.456, 0.406], std=[0.229, 0.224, 0.225]),
        ]
    )
    dataset = Photos(args.data, transform)
    loader = torch.utils.data.DataLoader(dataset, args.batch_size, shuffle=True, num_workers=args.workers)
    return loader


if __name__ == "__main__":
    args = parse(__doc__)
    train(args, make_loader(args))
