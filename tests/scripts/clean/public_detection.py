# As the detection reference of torchvision, in one file.
import datetime
import math
import os
import sys
import time

import numpy as np
import torch
import torch.utils.data
import torchvision
from PIL import Image
from torchvision.transforms import v2 as T


class PennFudan(torch.utils.data.Dataset):
    def __init__(self, root, transforms):
        self.root = root
        self.transforms = transforms
        self.imgs = list(sorted(os.listdir(os.path.join(root, "PNGImages"))))
        self.masks = list(sorted(os.listdir(os.path.join(root, "PedMasks"))))

    def __getitem__(self, idx):
        img = Image.open(os.path.join(self.root, "PNGImages", self.imgs[idx])).convert("RGB")
        mask = torch.from_numpy(np.array(Image.open(os.path.join(self.root, "PedMasks", self.masks[idx]))))
        obj_ids = torch.unique(mask)[1:]
        masks = (mask == obj_ids[:, None, None]).to(dtype=torch.uint8)
        boxes = torchvision.ops.masks_to_boxes(masks)
        labels = torch.ones((len(obj_ids),), dtype=torch.int64, device=boxes.device)
        area = (boxes[:, 3] - boxes[:, 1]) * (boxes[:, 2] - boxes[:, 0])
        target = {"boxes": boxes.to(torch.float32), "labels": labels.to(boxes.device), "masks": masks, "area": area}
        target["iscrowd"] = torch.zeros((len(obj_ids),), dtype=torch.int64, device="cpu")
        return self.transforms(T.functional.to_image(img), target)

    def __len__(self):
        return len(self.imgs)


def get_transform(train):
    transforms = [T.ScaleJitter(target_size=(1024, 1024)), T.RandomHorizontalFlip(0.5)] if train else []
    return T.Compose([*transforms, T.ToDtype(torch.float, scale=True), T.ToPureTensor()])


def collate_fn(batch):
    return tuple(zip(*batch))


def train_one_epoch(model, optimizer, data_loader, device, epoch, print_freq, scaler=None):
    model.train()
    history = []
    for step, (images, targets) in enumerate(data_loader):
        images = list(image.to(device, non_blocking=True) for image in images)
        targets = [
            {k: v.to(device, non_blocking=True) if isinstance(v, torch.Tensor) else v for k, v in t.items()}
            for t in targets
        ]
        with torch.amp.autocast("cuda", enabled=scaler is not None):
            loss_dict = model(images, targets)
            losses = sum(loss for loss in loss_dict.values())
        loss_dict_reduced = {name: loss.detach() for name, loss in loss_dict.items()}
        loss_value = sum(loss_dict_reduced.values()).item()
        if not math.isfinite(loss_value):
            print(f"Loss is {loss_value}, stopping training")
            sys.exit(1)
        optimizer.zero_grad()
        if scaler is not None:
            scaler.scale(losses).backward()
            scaler.step(optimizer)
            scaler.update()
        else:
            losses.backward()
            optimizer.step()
        history.append(loss_value)
        if step % print_freq == 0:
            print(epoch, step, loss_value)
    return history


@torch.inference_mode()
def evaluate(model, data_loader, device):
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    cpu_device = torch.device("cpu")
    model.eval()
    found = []
    for images, targets in data_loader:
        images = list(img.to(device) for img in images)
        outputs = model(images)
        found += [{k: v.to(cpu_device) for k, v in t.items()} for t in outputs]
    torch.set_num_threads(n_threads)
    return found


def main(epochs=26):
    device = torch.device("cuda")
    dataset = PennFudan("PennFudanPed", get_transform(train=True))
    dataset_test = PennFudan("PennFudanPed", get_transform(train=False))
    indices = torch.randperm(len(dataset)).tolist()
    dataset = torch.utils.data.Subset(dataset, indices[:-50])
    dataset_test = torch.utils.data.Subset(dataset_test, indices[-50:])
    train_sampler = torch.utils.data.RandomSampler(dataset)
    train_batch_sampler = torch.utils.data.BatchSampler(train_sampler, 2, drop_last=True)
    data_loader = torch.utils.data.DataLoader(
        dataset, batch_sampler=train_batch_sampler, num_workers=4, collate_fn=collate_fn, pin_memory=True
    )
    data_loader_test = torch.utils.data.DataLoader(
        dataset_test, batch_size=1, num_workers=4, collate_fn=collate_fn, pin_memory=True
    )
    model = torchvision.models.detection.maskrcnn_resnet50_fpn(weights="DEFAULT")
    model.to(device)
    params = [p for p in model.parameters() if p.ndim > 0]
    optimizer = torch.optim.SGD(params, lr=0.02, momentum=0.9, weight_decay=1e-4)
    lr_scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones=[16, 22], gamma=0.1)
    start_time = time.time()
    for epoch in range(epochs):
        train_one_epoch(model, optimizer, data_loader, device, epoch, 20)
        lr_scheduler.step()
        torch.save({"model": model.state_dict(), "epoch": epoch}, f"model_{epoch}.pth")
        evaluate(model, data_loader_test, device=device)
    print(f"Training time {datetime.timedelta(seconds=int(time.time() - start_time))}")


if __name__ == "__main__":
    main()
