"""How things are computed, on nodes: what the methods of a tensor stand on. Knows no Tensor."""
