#!/usr/bin/env python3
""" ImageNet training script, stripped down from timm's train.py
"""
import argparse
import logging
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torchvision.datasets as datasets
import torchvision.transforms as transforms
from timm.models import create_model
from timm.utils import accuracy
from torch.nn.parallel import DistributedDataParallel as NativeDDP

_logger = logging.getLogger('train')

parser = argparse.ArgumentParser(description='PyTorch ImageNet Training')
parser.add_argument('data_dir', metavar='DIR')
parser.add_argument('--model', default='resnet50', type=str, metavar='MODEL')
parser.add_argument('--epochs', type=int, default=100)
parser.add_argument('-b', '--batch-size', type=int, default=128)
parser.add_argument('-j', '--workers', type=int, default=0, metavar='N', help='how many training processes to use')
parser.add_argument('--lr', type=float, default=0.1)
parser.add_argument('--log-interval', type=int, default=50)


class AverageMeter:
    def __init__(self):
        self.reset()

    def reset(self):
        self.val = self.avg = self.sum = self.count = 0

    def update(self, val, n=1):
        self.val = val
        self.sum += val * n
        self.count += n
        self.avg = self.sum / self.count


def main():
    args = parser.parse_args()
    dist.init_process_group(backend='nccl')
    args.local_rank = int(os.environ['LOCAL_RANK'])
    torch.cuda.set_device(args.local_rank)

    model = create_model(args.model, pretrained=False, num_classes=1000).cuda()
    model = NativeDDP(model, device_ids=[args.local_rank])
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, weight_decay=2e-5)
    train_loss_fn = nn.CrossEntropyLoss(label_smoothing=0.1).cuda()

    normalize = transforms.Normalize(mean=[0.485, 0.456, 0.406], std=[0.229, 0.224, 0.225])
    dataset_train = datasets.ImageFolder(
        os.path.join(args.data_dir, 'train'),
        transforms.Compose([
            transforms.RandomResizedCrop(224),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            normalize,
        ]))
    dataset_eval = datasets.ImageFolder(
        os.path.join(args.data_dir, 'val'),
        transforms.Compose([
            transforms.Resize(512),  # expect: resized-twice
            transforms.Resize(256),
            transforms.CenterCrop(224),
            transforms.ToTensor(),
            normalize,
        ]))
    train_sampler = torch.utils.data.distributed.DistributedSampler(dataset_train)  # expect: set-epoch

    loader_train = torch.utils.data.DataLoader(  # expect: num-workers, pin-memory, python-images
        dataset_train, batch_size=args.batch_size, sampler=train_sampler, num_workers=args.workers)
    loader_eval = torch.utils.data.DataLoader(  # expect: num-workers, pin-memory, python-images
        dataset_eval, batch_size=args.batch_size, shuffle=False, num_workers=args.workers)

    best_metric = None
    for epoch in range(args.epochs):
        train_metrics = train_one_epoch(epoch, model, loader_train, optimizer, train_loss_fn, args)
        eval_metrics = validate(model, loader_eval, args)
        if best_metric is None or eval_metrics['top1'] > best_metric:
            best_metric = eval_metrics['top1']
            torch.save(model.state_dict(), 'model_best.pth.tar')


def train_one_epoch(epoch, model, loader, optimizer, loss_fn, args):
    batch_time_m = AverageMeter()
    losses_m = AverageMeter()
    model.train()
    end = time.time()
    for batch_idx, (input, target) in enumerate(loader):
        input, target = input.cuda(), target.cuda()  # expect: blocking-copy, blocking-copy
        output = model(input)
        loss = loss_fn(output, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses_m.update(loss, input.size(0))  # missed: kept-graph
        batch_time_m.update(time.time() - end)
        if batch_idx % args.log_interval == 0:
            _logger.info('Train: {} [{}] Loss: {:.3f} Time: {:.3f}s'.format(
                epoch, batch_idx, losses_m.avg, batch_time_m.avg))
        end = time.time()
    return {'loss': losses_m.avg}


def validate(model, loader, args):
    top1_m = AverageMeter()
    model.eval()
    for batch_idx, (input, target) in enumerate(loader):
        input = input.cuda(non_blocking=True)
        target = target.cuda(non_blocking=True)
        output = model(input)  # expect: no-grad
        acc1, acc5 = accuracy(output, target, topk=(1, 5))
        top1_m.update(acc1.item(), output.size(0))
    return {'top1': top1_m.avg}


if __name__ == '__main__':
    main()
