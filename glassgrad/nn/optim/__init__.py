"""Optimizers, schedules, clipping and mixed precision. In: parameters with gradients. Out: better parameters."""

from glassgrad.nn.optim import lr_scheduler as lr_scheduler
from glassgrad.nn.optim.adadelta import Adadelta
from glassgrad.nn.optim.adafactor import Adafactor
from glassgrad.nn.optim.adagrad import Adagrad
from glassgrad.nn.optim.adam import LAMB, Adam, Adamax, AdamW, NAdam, RAdam
from glassgrad.nn.optim.asgd import ASGD
from glassgrad.nn.optim.base import Optimizer, OptimizerGroup
from glassgrad.nn.optim.clip import clip_grad_norm_, clip_grad_value_, total_norm
from glassgrad.nn.optim.lbfgs import LBFGS
from glassgrad.nn.optim.mixed_precision import GradScaler, autocast
from glassgrad.nn.optim.muon import Muon
from glassgrad.nn.optim.rmsprop import RMSprop
from glassgrad.nn.optim.rprop import Rprop
from glassgrad.nn.optim.sgd import LARS, SGD
