import torch
from torch.utils.data import DataLoader

loader = DataLoader(corpus, batch_size=8, num_workers=2, pin_memory=True)
model = Model().cuda()
optimizer = torch.optim.AdamW(model.parameters())
scaler = torch.cuda.amp.GradScaler()
step = 0
batches = iter(loader)
while step < 10000:
    for micro in range(4):
        x, y = (t.cuda(non_blocking=True) for t in next(batches))
        with torch.cuda.amp.autocast():
            loss = model(x, y) / 4
        scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    if step % 10 == 0:
        print(step, loss.item() * 4)
    if step % 1000 == 999:
        torch.save(model.state_dict(), "last.pt")
        torch.cuda.empty_cache()
    step += 1
