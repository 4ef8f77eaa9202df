"""How things are computed, on nodes: the methods of a tensor call these functions. Does not know tensors."""
