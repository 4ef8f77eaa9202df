"""The families of tilings, by the first word of a move. In: nothing. Out: each family's free fields. Imports nothing,
so that a process whose kernels are all cached on disk can tell which of them are tiled without loading the
optimizer."""

# Each family with its free fields, which a search may change. All other fields fix the order of a sum, or follow from
# it.
FAMILIES = {
    "contract": ("rows", "vectors", "lanes", "block_m", "block_n", "left", "right", "ahead", "k_blocks"),
    "direct": ("rows", "vectors", "along", "block_m", "block_n"),
    "unit": ("rows", "vectors", "block_m", "block_n", "left", "k_block"),
    "staged": ("rows", "vectors", "k_block", "stages"),
    "boxes": ("rows", "unit", "stages", "stay", "cluster"),
    "warps": ("rows", "vectors"),
    "held": ("ahead", "stay"),
    "taps": (),
    "window": ("rows", "vectors"),
}
