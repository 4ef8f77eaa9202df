"""tinygrad, answered by glassgrad: its Tensor, layers, optimizers, files, helpers and older names.

In: what scripts of tinygrad import. Out: classes and functions over glassgrad's. `module_names.py` says which module of
tinygrad's each belongs to.
"""
