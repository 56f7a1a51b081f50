import torch


def train_one_batch(model, optimizer, batch, device):
    images, labels = batch
    images = images.to(device)  # expect: blocking-copy
    labels = labels.to(device, non_blocking=True)
    with torch.autocast("cuda"):
        loss = torch.nn.functional.cross_entropy(model(images), labels)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    return {"loss": loss.item()}  # expect: sync-item
