"""Provide optimizers, schedules, clipping and mixed precision. In: parameters with gradients. Out: better parameters.
"""

from glassgrad.nn.optim import lr_scheduler as lr_scheduler
from glassgrad.nn.optim.algorithms.adam import LAMB, Adam, Adamax, AdamW, NAdam, RAdam
from glassgrad.nn.optim.algorithms.adaptive import Adadelta, Adafactor, Adagrad, RMSprop
from glassgrad.nn.optim.algorithms.lbfgs import LBFGS
from glassgrad.nn.optim.algorithms.muon import Muon
from glassgrad.nn.optim.algorithms.sgd import ASGD, LARS, SGD, Rprop
from glassgrad.nn.optim.clip import clip_grad_norm_, clip_grad_value_, total_norm
from glassgrad.nn.optim.mixed_precision import GradScaler, autocast
from glassgrad.nn.optim.optimizer import Optimizer, OptimizerGroup
