# Faster R-CNN on my own boxes, adapted from the torchvision finetuning tutorial
import json
import math
import os
import sys

import torch
import torchvision
from PIL import Image
from torch.utils.data import DataLoader
from torchvision.models.detection import fasterrcnn_resnet50_fpn
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor
from torchvision.transforms import functional as TF
from torchvision.transforms import v2

device = torch.device("cuda") if torch.cuda.is_available() else torch.device("cpu")


class HelmetDataset(torch.utils.data.Dataset):
    def __init__(self, root, split):
        self.root = root
        with open(os.path.join(root, f"{split}.json")) as f:
            self.items = json.load(f)
        self.tf = v2.Compose([v2.Resize(1600), v2.RandomHorizontalFlip(), v2.Resize(800), v2.ToDtype(torch.float32, scale=True)])  # expect: resized-twice

    def __getitem__(self, idx):
        item = self.items[idx]
        img = Image.open(os.path.join(self.root, item["file"])).convert("RGB")
        boxes = torch.as_tensor(item["boxes"], dtype=torch.float32).to(device)  # expect: device-in-dataset
        labels = torch.ones((len(boxes),), dtype=torch.int64, device=device)  # expect: device-in-dataset
        target = {"boxes": boxes, "labels": labels, "image_id": torch.tensor([idx])}
        img, target = self.tf(TF.pil_to_tensor(img), target)
        return img, target

    def __len__(self):
        return len(self.items)


def collate_fn(batch):
    return tuple(zip(*batch))


def get_model(num_classes):
    model = fasterrcnn_resnet50_fpn(weights="DEFAULT")
    in_features = model.roi_heads.box_predictor.cls_score.in_features
    model.roi_heads.box_predictor = FastRCNNPredictor(in_features, num_classes)
    return model


def train_one_epoch(model, optimizer, data_loader, epoch):
    model.train()
    loss_hist = []
    for images, targets in data_loader:
        images = list(image.to(device) for image in images)  # expect: blocking-copy
        targets = [{k: v.to(device) for k, v in t.items()} for t in targets]  # expect: blocking-copy
        loss_dict = model(images, targets)
        losses = sum(loss for loss in loss_dict.values())
        if not math.isfinite(losses.item()):
            print("Loss is {}, stopping training".format(losses))
            sys.exit(1)
        optimizer.zero_grad()
        losses.backward()
        optimizer.step()
        loss_hist.append(loss_dict)  # missed: kept-graph
    return loss_hist


def evaluate(model, data_loader):
    model.eval()
    results = []
    for images, targets in data_loader:
        images = [img.to(device) for img in images]
        outputs = model(images)  # expect: no-grad
        results.extend(outputs)
    return results


def main():
    dataset = HelmetDataset("helmets", "train")
    dataset_test = HelmetDataset("helmets", "test")
    coco = torchvision.datasets.CocoDetection("coco/val2017", "coco/annotations/instances_val2017.json")
    # num_workers must be 0 or I get "Cannot re-initialize CUDA in forked subprocess"
    data_loader = DataLoader(dataset, batch_size=2, shuffle=True, num_workers=0, collate_fn=collate_fn)  # expect: num-workers, pin-memory
    data_loader_test = DataLoader(dataset_test, batch_size=1, shuffle=False, collate_fn=collate_fn)  # expect: num-workers, pin-memory
    coco_loader = DataLoader(coco, batch_size=1, num_workers=4, pin_memory=True, collate_fn=collate_fn)  # expect: python-images

    model = get_model(2)
    model.to(device)
    params = [p for p in model.parameters()]
    optimizer = torch.optim.SGD(params, lr=0.005, momentum=0.9, weight_decay=0.0005)
    lr_scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=3, gamma=0.1)
    for epoch in range(10):
        train_one_epoch(model, optimizer, data_loader, epoch)
        lr_scheduler.step()
        evaluate(model, data_loader_test)
    evaluate(model, coco_loader)


if __name__ == "__main__":
    main()
