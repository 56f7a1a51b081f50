import torch
from torch.utils.data import DataLoader

device = torch.device("cuda:0")
netG, netD = make_gan(device)
optimizerG = torch.optim.Adam(netG.parameters())
optimizerD = torch.optim.Adam(netD.parameters())
loader = DataLoader(faces(), 128, True, None, None, 8, None, True)
fixed = torch.randn(64, 100).to(device)
amp = torch.autocast("cuda", torch.float16)
for epoch in range(5):
    for i, (real, _) in enumerate(loader):
        netD.zero_grad(set_to_none=True)
        real = real.to(device, non_blocking=True)
        noise = torch.randn(real.size(0), 100, device=device)
        label = torch.full((real.size(0),), 1.0, device=device)
        with amp:
            fake = netG(noise)
            lossD = netD(real).sub(label).mean() + netD(fake.detach()).mean()
        lossD.backward()
        optimizerD.step()
        netG.zero_grad()
        with amp:
            lossG = -netD(fake).mean()
        lossG.backward()
        optimizerG.step()
        if i % 50 == 0:
            print(lossD.item(), lossG.item())
