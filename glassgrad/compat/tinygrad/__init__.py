"""Provide tinygrad's Tensor, layers, optimizers, files, helpers and older names on glassgrad.

In: what scripts of tinygrad import. Out: classes and functions over glassgrad's. `module_names.py` says which module of
tinygrad's each belongs to.
"""
