"""What other libraries call things: facts for docs/api.md. tinygrad 0.14 and PyTorch 2.13, by introspection."""

from __future__ import annotations

# public names of tinygrad's Tensor
TINYGRAD = frozenset("""
    T abs acos acosh add all allclose alu any arange argmax argmin argsort as_param asin asinh assign atan atanh
    avg_pool2d backward batchnorm bfloat16 binary_crossentropy binary_crossentropy_logits bitcast bitwise_and
    bitwise_not bitwise_or bitwise_xor bool call callify cast cat ceil celu chunk clamp clip clone const
    const_like contiguous contiguous_backward conv2d conv_transpose2d copysign cos cosh cross_entropy cummax
    cummin cumprod cumsum custom_kernel data decode_hevc_frame detach device diag diagonal div dot double
    dropout dtype einsum element_size elu empty empty_like eq erf exp exp2 expand eye flatten flip float floor
    fmod from_blob from_url full full_like gather gelu glorot_uniform grad gradient half hardsigmoid hardswish
    hardtanh hash image_conv2d image_dot int interpolate invalids is_floating_point is_param is_param_ isclose
    isfinite isinf isnan item kaiming_normal kaiming_uniform keccak layernorm leaky_relu lerp linear
    linear_with_vars linspace log log10 log2 log_softmax logaddexp logcumsumexp logical_not logsigmoid logsumexp
    long lshift manual_seed masked_fill masked_select matmul max max_numel max_pool2d max_shape max_unpool2d
    maximum mean meshgrid min minimum mish mod mul multinomial nbytes ndim ne neg newton_schulz nll_loss nonzero
    normal normalize numel numpy one_hot ones ones_like pad pad_to permute pow prod qr quick_gelu rand rand_like
    randint randn randn_like random_bits randperm realize rearrange reciprocal relu relu6 repeat
    repeat_interleave replace reshape roll round rshift rsqrt scaled_dot_product_attention scaled_uniform
    scatter scatter_reduce schedule_linear selu sequential shape shard shard_ shard_like short shrink shrink_to
    sigmoid sign silu sin sinh size softmax softmin softplus softsign sort sparse_categorical_crossentropy split
    sqrt square squeeze stack std std_mean sub sum svd swish tan tanh threefry to to_ tolist topk transpose tril
    triu trunc ufix unflatten unfold uniform unsqueeze uop uprod usum var var_mean view where zeros zeros_like
""".split())

# where PyTorch has the same; a bare name is a method of torch.Tensor
PYTORCH = {
    **{name: name for name in """
        H T abs abs_ absolute absolute_ acos acos_ acosh acosh_ add add_ addbmm addbmm_ addcdiv addcdiv_ addcmul
        addcmul_ addmm addmm_ addmv addmv_ addr addr_ adjoint all allclose amax amin aminmax any arccos arccos_
        arccosh arccosh_ arcsin arcsin_ arcsinh arcsinh_ arctan arctan2 arctan2_ arctan_ arctanh arctanh_ argmax
        argmin argsort argwhere asin asin_ asinh asinh_ atan atan2 atan2_ atan_ atanh atanh_ backward baddbmm
        baddbmm_ bernoulli_ bfloat16 bincount bitwise_and bitwise_and_ bitwise_left_shift bitwise_left_shift_
        bitwise_not bitwise_not_ bitwise_or bitwise_or_ bitwise_right_shift bitwise_right_shift_ bitwise_xor
        bitwise_xor_ bmm bool broadcast_to byte cauchy_ ceil ceil_ char cholesky_inverse cholesky_solve chunk
        clamp clamp_ clamp_max clamp_max_ clamp_min clamp_min_ clip clip_ clone conj contiguous copy_ copysign
        copysign_ corrcoef cos cos_ cosh cosh_ count_nonzero cov cpu cross cummax cummin cumprod cumprod_ cumsum
        cumsum_ data deg2rad deg2rad_ det detach detach_ device diag diag_embed diagflat diagonal diff digamma
        digamma_ dim dist div div_ divide divide_ double dsplit dtype element_size eq eq_ equal erf erf_ erfc
        erfc_ erfinv erfinv_ exp exp2 exp2_ exp_ expand expand_as expm1 expm1_ exponential_ fill_ fill_diagonal_
        fix fix_ flatten flip fliplr flipud float float_power floor floor_ floor_divide floor_divide_ fmax fmin
        fmod fmod_ frac frac_ gather gcd gcd_ ge ge_ geometric_ ger grad greater greater_ greater_equal
        greater_equal_ gt gt_ half hardshrink heaviside heaviside_ histc hsplit hypot hypot_ index_add
        index_add_ index_copy index_copy_ index_fill index_fill_ index_put index_put_ index_select inner int
        inverse is_complex is_contiguous is_cpu is_floating_point is_nonzero is_same_size is_signed isclose
        isfinite isinf isnan isneginf isposinf isreal item itemsize kron kthvalue lcm lcm_ ldexp ldexp_ le le_
        lerp lerp_ less less_ less_equal less_equal_ lgamma lgamma_ log log10 log10_ log1p log1p_ log2 log2_
        log_ log_normal_ log_softmax logaddexp logaddexp2 logcumsumexp logdet logical_and logical_and_
        logical_not logical_not_ logical_or logical_or_ logical_xor logical_xor_ logit logit_ logsumexp long lt
        lt_ mH mT masked_fill masked_fill_ masked_scatter masked_scatter_ masked_select matmul matrix_exp max
        maximum mean median min minimum mm mode moveaxis movedim msort mul mul_ multinomial multiply multiply_
        mv nan_to_num nan_to_num_ nanmean nanmedian nanquantile nansum narrow nbytes ndim ndimension ne ne_ neg
        neg_ negative negative_ nelement new_empty new_full new_ones new_tensor new_zeros nonzero norm normal_
        not_equal not_equal_ numel numpy outer permute pinverse positive pow pow_ prelu prod put put_ quantile
        rad2deg rad2deg_ random_ ravel reciprocal reciprocal_ relu relu_ remainder remainder_ renorm renorm_
        repeat repeat_interleave requires_grad requires_grad_ reshape reshape_as roll rot90 round round_ rsqrt
        rsqrt_ scatter scatter_ scatter_add scatter_add_ scatter_reduce scatter_reduce_ select select_scatter
        sgn sgn_ shape short sigmoid sigmoid_ sign sign_ signbit sin sin_ sinc sinc_ sinh sinh_ size
        slice_scatter slogdet softmax sort split split_with_sizes sqrt sqrt_ square square_ squeeze squeeze_ std
        stride sub sub_ subtract subtract_ sum sum_to_size swapaxes swapaxes_ swapdims swapdims_ t t_ take
        take_along_dim tan tan_ tanh tanh_ tensor_split tile to tolist topk trace transpose transpose_ tril
        tril_ triu triu_ true_divide true_divide_ trunc trunc_ type type_as unbind unflatten unfold uniform_
        unique unique_consecutive unsqueeze unsqueeze_ var vdot view view_as vsplit where xlogy xlogy_ zero_
    """.split()},
    **{name: f"torch.{name}" for name in """
        adaptive_avg_pool1d adaptive_max_pool1d arange atleast_1d atleast_2d atleast_3d bernoulli
        binary_cross_entropy_with_logits block_diag broadcast_tensors bucketize cartesian_prod cat cdist celu
        column_stack combinations concat concatenate cond cosine_similarity cumulative_trapezoid dstack einsum
        empty empty_like eye from_dlpack from_numpy full full_like hinge_embedding_loss hstack isin kl_div
        linspace logspace manual_seed matrix_rank meshgrid normal ones ones_like pairwise_distance
        poisson_nll_loss rand rand_like randint randn randn_like randperm row_stack searchsorted selu stack
        std_mean tensordot threshold trapezoid trapz tril_indices triu_indices vander var_mean vstack zeros
        zeros_like
    """.split()},
    **{name: f"linalg.{name}" for name in """
        cholesky eigh eigvalsh inv lstsq matrix_norm matrix_power multi_dot pinv qr solve solve_triangular svd
        svdvals tensorinv tensorsolve vecdot vector_norm
    """.split()},
    **{name: f"F.{name}" for name in """
        adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool2d adaptive_max_pool3d affine_grid
        binary_cross_entropy channel_shuffle cosine_embedding_loss cross_entropy ctc_loss dropout elu fold
        gaussian_nll_loss gelu glu grid_sample hardsigmoid hardswish hardtanh huber_loss interpolate l1_loss
        leaky_relu linear local_response_norm logsigmoid margin_ranking_loss mish mse_loss multi_margin_loss
        multilabel_soft_margin_loss nll_loss normalize one_hot pad pixel_shuffle pixel_unshuffle relu6 rms_norm
        scaled_dot_product_attention silu smooth_l1_loss soft_margin_loss softmin softplus softshrink softsign
        tanhshrink triplet_margin_loss
    """.split()},
    "assign": "copy_",
    "avg_pool2d": "F.avg_pool1d, 2d, 3d",
    "batchnorm": "F.batch_norm",
    "binary_crossentropy": "F.binary_cross_entropy",
    "binary_crossentropy_logits": "F.binary_cross_entropy_with_logits",
    "bitcast": "view(dtype)",
    "cast": "to(dtype)",
    "conv2d": "F.conv1d, conv2d, conv3d",
    "conv_transpose2d": "F.conv_transpose1d, 2d, 3d",
    "dot": "matmul",
    "exponential": "Tensor.exponential_",
    "glorot_uniform": "nn.init.xavier_uniform_",
    "gradient": "autograd.grad",
    "kaiming_uniform": "nn.init.kaiming_uniform_",
    "layernorm": "F.layer_norm",
    "max_pool2d": "F.max_pool1d, 2d, 3d",
    "max_unpool2d": "F.max_unpool1d, 2d, 3d",
    "sequential": "nn.Sequential",
    "sparse_categorical_crossentropy": "F.cross_entropy",
    "swish": "F.silu",
    "test": "nn.Module.eval",
    "to_": "to",
    "train": "nn.Module.train",
    "uniform": "Tensor.uniform_",
    "xavier_uniform": "nn.init.xavier_uniform_",
}

# what a reader of the other library's texts should know
DIFFERENCES = {
    "gelu": "exact by default, as PyTorch; tanh in scripts that import tinygrad",
    "var": "the second argument is keepdim, as in tinygrad; PyTorch's `x.var(1, False)` is `x.var(1, unbiased=False)`",
    "std": "the second argument is keepdim, as in tinygrad; PyTorch's `x.std(1, False)` is `x.std(1, unbiased=False)`",
    "qr": "complete by default, as tinygrad; PyTorch's default is reduced",
    "cummax": "indices are int32, the latest of equal ones (PyTorch: int64; tinygrad before 0.12: values only)",
    "cummin": "indices are int32, the latest of equal ones (PyTorch: int64; tinygrad before 0.12: values only)",
    "max": "values only, as tinygrad; with PyTorch's keyword, `dim=1`, indices too. Without them equal maxima share "
           "the gradient, as in `amax`",
    "one_hot": "a value that is none of the classes gives zeros; PyTorch raises",
    "multinomial": "weights that are all 0 give the index 0; PyTorch raises",
    "inverse": "a singular matrix gives NaN; PyTorch raises",
    "min": "values only, as tinygrad; with PyTorch's keyword, `dim=1`, indices too",
    "sort": "always stable; indices are int32 (PyTorch: int64)",
    "argsort": "always stable; indices are int32 (PyTorch: int64)",
    "topk": "of equal values the first; indices are int32 (PyTorch: int64)",
    "argmax": "int32, as tinygrad (PyTorch: int64)",
    "argmin": "int32, as tinygrad (PyTorch: int64)",
    "nonzero": "int32, as tinygrad (PyTorch: int64)",
    "sum": "of integers up to 32 bits is int32 or uint32, as tinygrad (PyTorch: int64)",
    "linear": "weight is (in, out), as tinygrad; F.linear and nn.Linear have (out, in)",
    "clamp": "limits may be called min_ and max_ (tinygrad) or min and max (PyTorch)",
    "squeeze": "an axis that is not 1 is left alone",
    "inv": "a singular matrix gives NaN; PyTorch raises",
    "solve": "a singular matrix gives NaN; PyTorch raises",
    "cholesky": "a matrix that is not positive definite gives NaN; PyTorch raises",
    "allclose": "a tensor, as tinygrad; PyTorch gives a bool",
    "empty": "zeros: nothing is read before it is written",
    "assign": "rebinds: tensors computed before keep the old value; a view writes into the tensor it is a view of",
    "shard": "a tensor lives on one device: all names must be the same",
    "hash": "shake_128 of all bytes",
    "ctc_loss": "the gradient of the log-probabilities alone; PyTorch's is that of log_softmax before them too",
    "contiguous_backward": "changes nothing: kernels are chosen well without it",
    "add_": "as all names with an underscore: the tensor takes the new value, a view's tensor too",
    "detach": "stops gradients; there is no graph to free",
    "backward": "can be called again at any time; retain_graph and create_graph change nothing. Only leaves get a "
                "grad, as in PyTorch; through compat every live tensor on the way does, as in tinygrad",
    "callify": "changes nothing: what is realized together is scheduled together",
    "custom_kernel": "written as C and run at once; indices, loops, stores and registers, no vectors",
    "decode_hevc_frame": "raises: it drives the video unit of one vendor's graphics card",
    "fs_load": "raises: a storage service of tinygrad's",
    "fs_store": "raises: a storage service of tinygrad's",
    "fuse": "changes nothing: fusing is the scheduler's choice",
    "image_conv2d": "`conv2d`: memory is plain here",
    "image_dot": "`dot`: memory is plain here",
    "invalids": "zeros, as `empty`",
    "kernelize": "changes nothing: kernels are chosen when a tensor is realized",
    "linear_with_vars": "a list of kernels; tinygrad's is a node with them as its sources (`.src` works on both)",
    "no_grad": "changes nothing: a gradient is computed where it is asked for",
    "random_bits": "tinygrad's numbers, by Threefry; `rand` draws by Philox",
    "schedule_linear": "a list of kernels; tinygrad's is a node with them as its sources (`.src` works on both)",
    "keccak": "also shake_256",
    "masked_select": "runs the mask at once, unless given a size",
    "unique": "runs at once, to know how many",
}

# what tinygrad's Tensor has and this one does not
ABSENT: dict[str, str] = {}

# what PyTorch's Tensor, torch.nn, torch.optim and torch.linalg have and this has not: why, or what instead
NOT_FROM_PYTORCH: dict[str, str] = {
    "no complex numbers": """angle cdouble cfloat chalf conj_physical conj_physical_ eig eigvals imag is_conj istft real
        resolve_conj stft""",
    "no sparse layouts: gradients and tensors are dense": """SparseAdam ccol_indices coalesce col_indices crow_indices
        dense_dim indices is_coalesced is_sparse is_sparse_csr resize_as_sparse_ row_indices smm sparse_dim sparse_mask
        sparse_resize_ sparse_resize_and_clear_ sspaddmm to_dense to_sparse to_sparse_bsc to_sparse_bsr to_sparse_coo
        to_sparse_csc to_sparse_csr values""",
    "no quantized types; `gguf_load` unpacks quantized files": """dequantize int_repr is_quantized q_per_channel_axis
        q_per_channel_scales q_per_channel_zero_points q_scale q_zero_point qscheme""",
    "no storage that several tensors see: tensors are values; `clone`, `assign`, indexing": """as_strided as_strided_
        as_strided_scatter const_data_ptr data_ptr dim_order is_set_to is_shared layout new new_empty_strided pin_memory
        is_pinned resize resize_ resize_as resize_as_ set_ share_memory_ storage storage_offset storage_type
        untyped_storage""",
    "the graph is the expression itself: no tape to ask or hook into; `gradient`, `custom_gradient`": """grad_dtype
        grad_fn is_inference is_leaf module_load output_nr register_hook register_post_accumulate_grad_hook reinforce
        retain_grad retains_grad volatile""",
    "no such device, or one process: `to`, `device`": """DataParallel SyncBatchNorm cuda get_device ipu is_cuda
        is_distributed is_ipu is_maia is_meta is_mkldnn is_mps is_mtia is_vulkan is_xla is_xpu mtia record_stream
        to_mkldnn xpu""",
    "Python runs once, not for each element: write the formula": "apply_ map2_ map_",
    "axes have no names; PyTorch's are gone since 2.13": """align_as align_to has_names names refine_names
        rename rename_""",
    "internal, or removed there": """Buffer Container LinAlgError LinearCrossEntropyOptions NLLLoss2d RNNBase
        RNNCellBase UninitializedBuffer UninitializedParameter as_subclass common_notes hash_tensor index
        is_neg is_nested name resolve_neg slice_inverse symeig to_padded_tensor
        unsafe_chunk unsafe_split unsafe_split_with_sizes""",
    "LAPACK's packed factors; `solve`, `inv`, `det`, `qr`, `eigh` give what they are for": """geqrf householder_product
        ldl_factor ldl_factor_ex ldl_solve lu lu_factor lu_factor_ex lu_solve orgqr ormqr""",
    "NaN says that there is no answer: `cholesky`, `inv`, `solve`": "cholesky_ex inv_ex solve_ex",
    "`solve_triangular`": "triangular_solve", "`LocalResponseNorm`": "CrossMapLRN2d", "`narrow`": "narrow_copy",
    "`CrossEntropyLoss` after `Linear`": "LinearCrossEntropyLoss", "`float_power`": "float_power_",
    "`scatter_reduce`": "index_reduce index_reduce_", "`histc`": "histogram", "`nonzero`": "nonzero_static",
    "not there yet": """FractionalMaxPool2d FractionalMaxPool3d diagonal_scatter frexp i0 i0_ igamma igamma_ igammac
        igammac_ mvlgamma mvlgamma_ nextafter_ polygamma polygamma_""",
}

# -- modules: names that tinygrad has too, what PyTorch calls the others, and what differs ---------------------
IN_TINYGRAD = frozenset("""
    dtypes DType Device Context GlobalCounters Variable TinyJit Function
    BatchNorm BatchNorm2d BatchNorm3d Conv1d Conv2d ConvTranspose1d ConvTranspose2d Embedding GroupNorm InstanceNorm
    LSTMCell LayerNorm LayerNorm2d Linear RMSNorm
    LAMB Adam AdamW Optimizer OptimizerGroup Muon LARS SGD
    get_parameters get_state_dict load_state_dict safe_save safe_load safe_load_metadata torch_load gguf_load TensorIO
    mnist cifar
""".split())

IN_PYTORCH = {
    **{name: f"torch.nn.{name}" for name in """
        AdaptiveAvgPool1d AdaptiveAvgPool2d AdaptiveAvgPool3d AdaptiveMaxPool1d AdaptiveMaxPool2d AdaptiveMaxPool3d
        AvgPool1d AvgPool2d AvgPool3d BCELoss BCEWithLogitsLoss BatchNorm1d BatchNorm2d BatchNorm3d Bilinear CELU
        CTCLoss Conv1d Conv2d
        Conv3d ConvTranspose1d ConvTranspose2d ConvTranspose3d CrossEntropyLoss Dropout Dropout1d Dropout2d Dropout3d
        ELU Embedding Flatten GELU GRU GRUCell GroupNorm Hardsigmoid Hardswish Hardtanh HuberLoss Identity
        InstanceNorm1d InstanceNorm2d InstanceNorm3d KLDivLoss L1Loss LSTM LSTMCell LayerNorm LeakyReLU Linear
        LogSigmoid LogSoftmax MSELoss MaxPool1d MaxPool2d MaxPool3d Mish Module ModuleDict ModuleList
        MultiheadAttention NLLLoss PReLU Parameter ParameterDict ParameterList RMSNorm RNN RNNCell ReLU ReLU6 SELU
        Sequential SiLU Sigmoid SmoothL1Loss Softmax Softplus Softsign Tanh Unflatten Upsample AlphaDropout
        ChannelShuffle CircularPad1d CircularPad2d CircularPad3d ConstantPad1d ConstantPad2d ConstantPad3d
        CosineEmbeddingLoss CosineSimilarity Fold GLU GaussianNLLLoss Hardshrink HingeEmbeddingLoss LocalResponseNorm
        MarginRankingLoss MaxUnpool1d MaxUnpool2d MaxUnpool3d MultiLabelSoftMarginLoss PairwiseDistance PixelShuffle
        PixelUnshuffle PoissonNLLLoss ReflectionPad1d ReflectionPad2d ReflectionPad3d ReplicationPad1d
        ReplicationPad2d ReplicationPad3d SoftMarginLoss Softmax2d Softmin Softshrink Tanhshrink Threshold Transformer
        TransformerDecoder TransformerDecoderLayer TransformerEncoder TransformerEncoderLayer TripletMarginLoss Unfold
        UpsamplingBilinear2d UpsamplingNearest2d ZeroPad1d ZeroPad2d ZeroPad3d AdaptiveLogSoftmaxWithLoss EmbeddingBag
        FeatureAlphaDropout LPPool1d LPPool2d LPPool3d LazyBatchNorm1d LazyBatchNorm2d LazyBatchNorm3d LazyConv1d
        LazyConv2d LazyConv3d LazyConvTranspose1d LazyConvTranspose2d LazyConvTranspose3d LazyInstanceNorm1d
        LazyInstanceNorm2d LazyInstanceNorm3d LazyLinear MultiLabelMarginLoss MultiMarginLoss RReLU
        TripletMarginWithDistanceLoss
    """.split()},
    "BatchNorm": "torch.nn.BatchNorm1d, 2d, 3d", "InstanceNorm": "torch.nn.InstanceNorm1d, 2d, 3d",
    "MultiHeadAttention": "torch.nn.MultiheadAttention", "Swish": "torch.nn.SiLU", "Layer": "torch.nn.Module",
    **{name: f"torch.optim.{name}" for name in """
        ASGD Adadelta Adafactor Adagrad Adam AdamW Adamax LBFGS Muon NAdam Optimizer RAdam RMSprop Rprop SGD
    """.split()},
    "clip_grad_norm_": "torch.nn.utils.clip_grad_norm_", "clip_grad_value_": "torch.nn.utils.clip_grad_value_",
    "total_norm": "torch.nn.utils.get_total_norm", "GradScaler": "torch.amp.GradScaler",
    "autocast": "torch.autocast", "get_parameters": "Module.parameters", "get_state_dict": "Module.state_dict",
    "load_state_dict": "Module.load_state_dict", "torch_load": "torch.load", "safe_save": "safetensors.torch.save_file",
    "safe_load": "safetensors.torch.load_file", "save_checkpoint": "torch.save", "load_checkpoint": "torch.load",
    "mnist": "torchvision.datasets.MNIST", "fashion_mnist": "torchvision.datasets.FashionMNIST",
    "cifar": "torchvision.datasets.CIFAR10", "dtypes": "torch.float32, ...", "DType": "torch.dtype",
    "Device": "torch.device", "TinyJit": "torch.compile", "Function": "torch.autograd.Function",
    "checkpoint": "torch.utils.checkpoint.checkpoint", "grad": "torch.func.grad", "no_grad": "torch.no_grad",
    "optim": "torch.optim",
    "value_and_grad": "torch.func.grad_and_value", "jvp": "torch.func.jvp", "vmap": "torch.func.vmap",
    "c_kernel": "torch.library.custom_op", "MemoryLimitError": "torch.OutOfMemoryError",
}

MODULE_DIFFERENCES = {
    "BatchNorm": "arguments in PyTorch's order or tinygrad's: size, eps, affine, track_running_stats, momentum",
    "TinyJit": "runs twice, compares, then replays; refuses what it could not repeat",
    "Context": "settings of glassgrad; `tinygrad.helpers.Context` also takes those that only tinygrad has",
    "RMSNorm": "eps is 1e-6 unless it is given, as in tinygrad; PyTorch's default is `eps=None`",
    "LazyLinear": "has no weights before its first input, so call the model before making the optimizer",
    "AdaptiveLogSoftmaxWithLoss": "computes every cluster for every example",
    "Module": "parameters are the tensors with requires_grad; forward hooks are not there",
    "Layer": "the base of the layers here; a model of your own needs no base, or `Module`",
    "Muon": "the order of arguments is tinygrad's: momentum before weight_decay; parameters of more axes are taken",
    "torch_load": "executes nothing that is in the file",
    "Device": "names are CPU, CUDA, OPENCL, AMD, METAL, CLANG and PYTHON, and those you register",
    "grad": "the value comes from value_and_grad",
    "value_and_grad": "the value first, then the gradient (PyTorch: the other way round)",
}

# attributes without a docstring of their own
PLAIN = {"uop": "The graph node this tensor stands for", "no_grad": "False"}
