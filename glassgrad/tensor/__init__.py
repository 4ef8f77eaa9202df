"""The lazy tensor: methods that build graph nodes; nothing runs until a value is read.

`tensor` has the class. Its methods are mixins by theme in `methods`, all on one base class (`tensor_base`); how things
are computed, on nodes, is in `formulas`. What these share: type promotion and broadcasting (`broadcast`), argument
checks (`checks`), values computed by the engine (`realize_and_read`), text (`printing`), memory (`memory`) and
gradients (`autograd`).
"""
