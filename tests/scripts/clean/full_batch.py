import torch

device = "cuda"
x, y = torch.randn(1000, 20, device=device), torch.randn(1000, 1, device=device)
model = torch.nn.Linear(20, 1).to(device)
opt = torch.optim.LBFGS(model.parameters())
for epoch in range(200):
    with torch.autocast("cuda", torch.bfloat16):
        loss = (model(x) - y).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(epoch, loss.item())
