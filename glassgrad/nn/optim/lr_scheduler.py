"""All schedules under PyTorch's name of the room: `from glassgrad.nn.optim.lr_scheduler import StepLR`."""

from glassgrad.nn.optim.cycles import CosineAnnealingLR, CosineAnnealingWarmRestarts, OneCycleLR
from glassgrad.nn.optim.plateau import ReduceLROnPlateau
from glassgrad.nn.optim.schedule import (
    ConstantLR,
    ExponentialLR,
    LambdaLR,
    LinearLR,
    LRScheduler,
    MultiStepLR,
    SequentialLR,
    StepLR,
)

__all__ = ["ConstantLR", "CosineAnnealingLR", "CosineAnnealingWarmRestarts", "ExponentialLR", "LRScheduler",
           "LambdaLR", "LinearLR", "MultiStepLR", "OneCycleLR", "ReduceLROnPlateau", "SequentialLR", "StepLR"]
