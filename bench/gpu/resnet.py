"""ResNet-50 (He et al., "Deep residual learning for image recognition", 2016), so that torchvision is not needed."""

from __future__ import annotations

import torch
from torch import nn

__all__ = ["resnet50"]


def _convolution(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Sequential:
    convolution = nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs))


class _Bottleneck(nn.Module):
    """1x1, 3x3 (which strides), 1x1 to four times the width, and the shortcut."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        self.body = nn.Sequential(
            _convolution(inputs, width, 1),
            nn.ReLU(inplace=True),
            _convolution(width, width, 3, stride),
            nn.ReLU(inplace=True),
            _convolution(width, outputs, 1),
        )
        self.shortcut = nn.Identity() if inputs == outputs and stride == 1 else _convolution(inputs, outputs, 1, stride)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.relu(self.body(x) + self.shortcut(x))
        return result


def resnet50(classes: int = 1000) -> nn.Module:
    """The network for [N, 3, 224, 224]; 25.6 million parameters at 1,000 classes."""
    layers: list[nn.Module] = [_convolution(3, 64, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    inputs = 64
    for width, blocks, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for block in range(blocks):
            layers.append(_Bottleneck(inputs, width, stride if block == 0 else 1))
            inputs = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))
