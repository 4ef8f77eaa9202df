"""Export all schedules under PyTorch's name of the module: `from glassgrad.nn.optim.lr_scheduler import StepLR`."""

from glassgrad.nn.optim.schedules.cyclic_lr_schedules import (CosineAnnealingLR, CosineAnnealingWarmRestarts, CyclicLR,
                                                              OneCycleLR, ReduceLROnPlateau)
from glassgrad.nn.optim.schedules.lr_schedules import (ChainedScheduler, ConstantLR, ExponentialLR, LambdaLR, LinearLR,
                                                       LRScheduler, MultiplicativeLR, MultiStepLR, PolynomialLR,
                                                       SequentialLR, StepLR)

__all__ = ["ChainedScheduler", "ConstantLR", "CosineAnnealingLR", "CosineAnnealingWarmRestarts", "CyclicLR",
           "ExponentialLR", "LRScheduler", "LambdaLR", "LinearLR", "MultiStepLR", "MultiplicativeLR", "OneCycleLR",
           "PolynomialLR", "ReduceLROnPlateau", "SequentialLR", "StepLR"]
