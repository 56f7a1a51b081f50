import os

import torch
from torch import nn
from torch.utils.data import DataLoader
from torchvision import transforms

device = torch.device("cuda")
views = [transforms.Resize(224), transforms.Resize((256, 256))]
pyramid = transforms.Compose([transforms.Resize((128, 512)), transforms.ToTensor()])
student, teacher = nn.Linear(4, 4).to(device), nn.Linear(4, 4).to(device)
teacher.eval()
for parameter in teacher.parameters():
    parameter.requires_grad_(False)
optimizer = torch.optim.SGD(student.parameters(), 0.1)
loader = DataLoader(photos(), 64, num_workers=max(1, os.cpu_count() - 1), pin_memory=True, persistent_workers=True)


def accuracy(model, loader):
    was_training = model.training
    model.eval()
    right = torch.zeros((), device=device)
    with torch.inference_mode():
        for images, labels in loader:
            right += (model(images.to(device)).argmax(1).cpu() == labels).sum()
    model.train(was_training)
    return right


best, history = 0, []
for epoch in range(90):
    total = torch.zeros((), device=device)
    for step, (images, labels) in enumerate(loader):
        images = images.to(device, non_blocking=True)
        with torch.no_grad():
            wanted = teacher(images)
        losses = [nn.functional.mse_loss(student(images), wanted)]
        losses.append(losses[0] * 0.1)
        loss = sum(losses)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        total += loss.detach()
        if step % 50 == 0:
            history.append(loss.item())
    best = max(best, accuracy(student, loader))
