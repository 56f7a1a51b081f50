import torch
from torch.utils.data import DataLoader


class Runner:
    def __init__(self, model):
        self.model = model
        self.optim = torch.optim.SGD(model.parameters(), 0.1)
        self.loader = DataLoader(photos(), num_workers=4)

    def run_batch(self, x):
        loss = self.model(x).mean()
        loss.backward()
        self.optim.step()  # expect: zero-grad

    def run(self):
        for epoch in range(3):
            self.optim.zero_grad()
            for x in self.loader:
                self.run_batch(x)
