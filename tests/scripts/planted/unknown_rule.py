import torch

x = torch.zeros(1)  # feeder: ignore[no-such-rule]  # expect: ignore
