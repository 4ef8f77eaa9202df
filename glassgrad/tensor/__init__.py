"""Define the lazy tensor: methods that build graph nodes; nothing runs until a value is read.

`tensor` has the class. Its methods are mixins by theme in `methods`, all on one base class (`tensor_base`). The
formulas behind them, on nodes, are in `formulas`. They share type promotion and broadcasting (`broadcast`), argument
checks (`checks`), reading values through the engine (`realize_and_read`), text (`printing`), memory (`memory`) and
gradients (`autograd`).
"""
