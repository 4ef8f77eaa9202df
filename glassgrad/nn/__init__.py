"""Provide layers, optimizers, model files and data sets. In: tensors. Out: models.

A model is any object whose attributes are layers, tensors, or lists and dictionaries of them. Names and shapes of
parameters are PyTorch's, so state dictionaries can be exchanged in both directions.

Layers are in files by theme; most call the function of `functional`, PyTorch's F, that has the formula. Their common
base is in `modules`. `optim` trains models, `state` writes and reads them, and `datasets` loads training data.
"""

from importlib import import_module
from types import ModuleType

from glassgrad.nn import optim as optim, state as state
from glassgrad.nn.layers.activations import (CELU, ELU, GELU, GLU, SELU, Hardshrink, Hardsigmoid, Hardswish, Hardtanh,
                                             LeakyReLU, LogSigmoid, LogSoftmax, Mish, PReLU, ReLU, ReLU6, RReLU,
                                             Sigmoid, SiLU, Softmax, Softmax2d, Softmin, Softplus, Softshrink, Softsign,
                                             Swish, Tanh, Tanhshrink, Threshold)
from glassgrad.nn.layers.attention import MultiHeadAttention, MultiheadAttention
from glassgrad.nn.layers.convolution import Conv1d, Conv2d, Conv3d, ConvTranspose1d, ConvTranspose2d, ConvTranspose3d
from glassgrad.nn.layers.dropout import AlphaDropout, Dropout, Dropout1d, Dropout2d, Dropout3d, FeatureAlphaDropout
from glassgrad.nn.layers.embedding import Embedding, EmbeddingBag
from glassgrad.nn.layers.lazy import (LazyBatchNorm1d, LazyBatchNorm2d, LazyBatchNorm3d, LazyConv1d, LazyConv2d,
                                      LazyConv3d, LazyConvTranspose1d, LazyConvTranspose2d, LazyConvTranspose3d,
                                      LazyInstanceNorm1d, LazyInstanceNorm2d, LazyInstanceNorm3d, LazyLinear)
from glassgrad.nn.layers.linear import Bilinear, Identity, Linear
from glassgrad.nn.layers.normalization import (BatchNorm, BatchNorm1d, BatchNorm2d, BatchNorm3d, GroupNorm,
                                               InstanceNorm, InstanceNorm1d, InstanceNorm2d, InstanceNorm3d, LayerNorm,
                                               LayerNorm2d, LocalResponseNorm, RMSNorm)
from glassgrad.nn.layers.padding import (CircularPad1d, CircularPad2d, CircularPad3d, ConstantPad1d, ConstantPad2d,
                                         ConstantPad3d, ReflectionPad1d, ReflectionPad2d, ReflectionPad3d,
                                         ReplicationPad1d, ReplicationPad2d, ReplicationPad3d, ZeroPad1d, ZeroPad2d,
                                         ZeroPad3d)
from glassgrad.nn.layers.pooling import (AdaptiveAvgPool1d, AdaptiveAvgPool2d, AdaptiveAvgPool3d, AdaptiveMaxPool1d,
                                         AdaptiveMaxPool2d, AdaptiveMaxPool3d, AvgPool1d, AvgPool2d, AvgPool3d,
                                         LPPool1d, LPPool2d, LPPool3d, MaxPool1d, MaxPool2d, MaxPool3d, MaxUnpool1d,
                                         MaxUnpool2d, MaxUnpool3d, Upsample, UpsamplingBilinear2d, UpsamplingNearest2d)
from glassgrad.nn.layers.rearranging import (ChannelShuffle, Flatten, Fold, PixelShuffle, PixelUnshuffle, Unflatten,
                                             Unfold)
from glassgrad.nn.layers.recurrent import GRU, LSTM, RNN, GRUCell, LSTMCell, RNNCell
from glassgrad.nn.layers.sequential import Sequential
from glassgrad.nn.layers.transformer import (Transformer, TransformerDecoder, TransformerDecoderLayer,
                                             TransformerEncoder, TransformerEncoderLayer)
from glassgrad.nn.losses.losses import (AdaptiveLogSoftmaxWithLoss, BCELoss, BCEWithLogitsLoss, CosineEmbeddingLoss,
                                        CosineSimilarity, CrossEntropyLoss, CTCLoss, GaussianNLLLoss,
                                        HingeEmbeddingLoss, HuberLoss, KLDivLoss, L1Loss, MarginRankingLoss, MSELoss,
                                        MultiLabelMarginLoss, MultiLabelSoftMarginLoss, MultiMarginLoss, NLLLoss,
                                        PairwiseDistance, PoissonNLLLoss, SmoothL1Loss, SoftMarginLoss,
                                        TripletMarginLoss, TripletMarginWithDistanceLoss)
from glassgrad.nn.modules.layer import Layer
from glassgrad.nn.modules.module import Module, ModuleDict, ModuleList, Parameter, ParameterDict, ParameterList


def __getattr__(name: str) -> ModuleType:
    """Import a submodule on first use: `nn.datasets` imports NumPy and archive readers, `nn.functional` is large."""
    if name in ("datasets", "functional", "init", "utils"):
        return import_module(f"glassgrad.nn.{name}")
    raise AttributeError(f"glassgrad.nn has no {name!r}")
