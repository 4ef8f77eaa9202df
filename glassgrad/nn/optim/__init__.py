"""Optimizers, schedules, clipping and mixed precision. In: parameters with gradients. Out: better parameters."""

from glassgrad.nn.optim import lr_scheduler as lr_scheduler
from glassgrad.nn.optim.algorithms.adadelta import Adadelta
from glassgrad.nn.optim.algorithms.adafactor import Adafactor
from glassgrad.nn.optim.algorithms.adagrad import Adagrad
from glassgrad.nn.optim.algorithms.adam import LAMB, Adam, Adamax, AdamW, NAdam, RAdam
from glassgrad.nn.optim.algorithms.asgd import ASGD
from glassgrad.nn.optim.algorithms.lbfgs import LBFGS
from glassgrad.nn.optim.algorithms.muon import Muon
from glassgrad.nn.optim.algorithms.rmsprop import RMSprop
from glassgrad.nn.optim.algorithms.rprop import Rprop
from glassgrad.nn.optim.algorithms.sgd import LARS, SGD
from glassgrad.nn.optim.clip import clip_grad_norm_, clip_grad_value_, total_norm
from glassgrad.nn.optim.mixed_precision import GradScaler, autocast
from glassgrad.nn.optim.optimizer import Optimizer, OptimizerGroup
