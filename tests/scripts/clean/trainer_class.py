import torch
from torch.utils.data import DataLoader


class Trainer:
    def __init__(self, model, dataset, gpu):
        self.gpu = gpu
        self.model = model.to(gpu)
        self.optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        self.loader = DataLoader(dataset, batch_size=32, num_workers=4, pin_memory=True)
        self.autocast = torch.autocast("cuda", torch.bfloat16)

    def _step(self, x, y):
        self.optimizer.zero_grad()
        with self.autocast:
            loss = torch.nn.functional.cross_entropy(self.model(x), y)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def _epoch(self, epoch):
        losses = []
        for x, y in self.loader:
            x = x.to(self.gpu, non_blocking=True)
            y = y.to(self.gpu, non_blocking=True)
            losses.append(self._step(x, y))
        print(epoch, torch.stack(losses).mean().item())

    def train(self, epochs):
        for epoch in range(epochs):
            self._epoch(epoch)
            if epoch % 5 == 0:
                torch.save(self.model.state_dict(), "checkpoint.pt")
