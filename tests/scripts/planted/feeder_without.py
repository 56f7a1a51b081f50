import torch

from feeder import DataLoader, ShardDataset

loader = DataLoader(ShardDataset("shards"), batch_size=64, shuffle=True)  # expect: num-workers, pin-memory
model = torch.nn.Flatten().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for images, labels in loader:
    loss = model(images.cuda(non_blocking=True)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
