import torch

import feeder
from feeder import transforms as T

recipe = T.Compose([T.RandomResizedCrop(224), T.RandomHorizontalFlip(), T.ToDtype(torch.float32, scale=True)])
dataset = feeder.ShardDataset("shards", transform=recipe)
loader = feeder.DataLoader(dataset, batch_size=256, shuffle=True, num_workers=8, device="cuda")
model = torch.nn.Conv2d(3, 8, 3).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for epoch in range(90):
    for step, (images, labels) in enumerate(loader):
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(images).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if not step % 100:
            print(loss.item())
