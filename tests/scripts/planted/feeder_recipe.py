import torch

import feeder
from feeder import transforms as T
from feeder.transforms import Compose


def sharpen(image):
    return image


train = T.Compose(
    [
        T.ColorJitter(0.4, 0.4, 0.4),
        T.RandomResizedCrop(224),  # expect: native-op
        T.RandomHorizontalFlip(),
        T.ToDtype(torch.float32, scale=True),
    ]
)
early = T.Compose([T.Lambda(sharpen), T.Resize(256), T.CenterCrop(224)])  # expect: native-op
turned = Compose([T.Resize(256), T.CenterCrop(224), T.RandomRotation(30, expand=True), T.Grayscale(3)])  # expect: native-op
blurred = feeder.transforms.Compose([T.RandomCrop(224), T.GaussianBlur(65, sigma=(1, 20))])  # expect: native-op

# All of these are native, or not to be told.
held = T.Compose([T.Resize(256), T.CenterCrop(224), T.ColorJitter(0.4), T.Lambda(sharpen, on="tensor"), T.RandomErasing()])
padded = T.Compose([T.RandomCrop(32, padding=4), T.RandAugment(2, 9), T.GaussianBlur(23, (0.1, 2.0))])
unknown = T.Compose([T.Resize(SIZE), T.ColorJitter(0.4), T.RandomCrop(224)])
loader = feeder.DataLoader(feeder.ShardDataset("shards", transform=train), batch_size=64, num_workers=8)
