import torch
from torch import nn
from torch.utils.data import DataLoader
from torchvision import datasets, models, transforms

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
dataset = datasets.Places365("train", transform=transforms.ToTensor())
loader = DataLoader(dataset, batch_size=256, shuffle=True, num_workers=8, pin_memory=True, drop_last=True)
model = models.resnet50().to(device)
criterion = nn.CrossEntropyLoss().to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for epoch in range(90):
    running = torch.zeros((), device=device)
    for step, (images, labels) in enumerate(loader):
        images = images.to(device, non_blocking=True)
        labels = labels.to(device, non_blocking=True)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = criterion(model(images), labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        running += loss.detach()
        if step % 100 == 0:
            print(f"{epoch} {step}: {loss.item():.4f}")
    print(epoch, running.item() / len(loader))
    torch.save(model.state_dict(), f"{epoch}.pt")
