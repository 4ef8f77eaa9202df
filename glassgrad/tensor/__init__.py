"""The lazy tensor: methods that build graph nodes; nothing runs until a value is read.

`tensor` has the class. Its methods are mixins by theme in `methods`, all on one base (`base`); how things are computed,
on nodes, is in `formulas`. What these share: operands brought to one type and shape (`broadcast`), arguments checked
(`arguments`, `checks`), values computed by the engine (`evaluate`), text (`printing`), memory (`memory`) and gradients
(`autograd`).
"""
