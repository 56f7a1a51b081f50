from multiprocessing import cpu_count

import pandas as pd
import torch
import torch.nn.functional as F
from PIL import Image
from torch.utils.data import DataLoader
from torchvision import models, transforms as T

args = parse()
device = torch.device(f"cuda:{args.gpu}")
frame = pd.read_csv("train.csv")


class Ages(torch.utils.data.Dataset):
    def __getitem__(self, i):
        image = Image.open(frame.path[i]).convert("RGB")
        image = T.Compose([T.Resize(size=800), T.RandomCrop(700), T.Resize(size=224), T.ToTensor()])(image)  # expect: resized-twice
        return image, torch.tensor(frame.age[i], device=device)  # expect: device-in-dataset

    def __len__(self):
        return len(frame)


train_dl = DataLoader(Ages(), 64, shuffle=True, num_workers=cpu_count() * 2)  # expect: too-many-workers, pin-memory
test_dl = DataLoader(Ages(), 64)  # expect: num-workers, pin-memory
model = models.resnet18(num_classes=1).cuda()
opt = torch.optim.AdamW(model.parameters())
all_losses = []
for epoch in range(args.epochs):
    model.train()
    for x, y in train_dl:
        pred = model(x.cuda())  # expect: blocking-copy
        mse = F.mse_loss(pred.squeeze(), y.to(device))  # expect: blocking-copy
        opt.zero_grad()
        mse.backward()
        opt.step()
        all_losses.append(mse)  # expect: kept-graph
    model.eval()
    errors = []
    for x, y in test_dl:
        errors.append((model(x.cuda()).squeeze().cpu() - y).abs().mean().item())  # expect: no-grad
    print(epoch, sum(errors) / len(errors))
