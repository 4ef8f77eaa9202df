"""Calls that mean one thing here, and another in tinygrad or PyTorch. In: whom to follow. Out: what is meant.

A script that says `import tinygrad`, or under `--torch` `import torch` (see `glassgrad/compat`), was written against
that library's numbers, so from that import on it is followed. The code that a row is about asks `meaning`, and no
other does: what glassgrad computes for itself, it asks for in full (`x.gelu("none")`, `x.amax(1)`).
"""

from __future__ import annotations

from typing import Literal, NamedTuple

__all__ = ["MEANINGS", "OF_PYTORCH", "Library", "Meaning", "PyTorchMeaning", "follow", "meaning"]


class Meaning(NamedTuple):
    """A call that the two libraries take differently."""
    call: str           # as a page shows it
    ours: str
    tinygrad: str
    why: str            # what is gained by ours, when nobody says `import tinygrad`


MEANINGS: dict[str, Meaning] = {
    "gelu": Meaning(
        "`x.gelu()`", ours="none", tinygrad="tanh",
        why="models that come from PyTorch give the numbers they gave there"),
    "negative truth": Meaning(
        "`-x` of truth values", ours="refuse", tinygrad="the opposite",
        why="NumPy and PyTorch refuse it too: the opposite is `~x`, the number `-x.int()`"),
    "numbers beyond a type": Meaning(
        "`x + 300` of uint8, and `Tensor([300], dtype=dtypes.uint8)`", ours="refuse", tinygrad="wrap",
        why="a number that silently becomes another is a mistake more often than not"),
    "products of small integers": Meaning(
        "`x @ y` of int8, uint8, int16 or uint16", ours="in 32 bits", tinygrad="in the factors' type",
        why="sums of products of int8 do not fit into int8, and processors sum them in 32 bits"),
    "step outside training": Meaning(
        "`optimizer.step()` while `Tensor.training` is False", ours="step", tinygrad="refuse",
        why="PyTorch's optimizers know nothing of modes; tinygrad's refusal finds a forgotten Tensor.training"),
    "Muon": Meaning(
        "`nn.optim.Muon(parameters)`", ours="bfloat16, scaled, matrices only",
        tinygrad="float32, not scaled, vectors too",
        why="the steps of `torch.optim.Muon`, which rounds the iteration and scales by the matrix's sides"),
    "names the model lacks": Meaning(
        "`load_state_dict(model, state)` of a state with more names", ours="refuse", tinygrad="leave out",
        why="a name that is loaded nowhere is a mistake more often than not"),
    "types of a loaded state": Meaning(
        "`load_state_dict(model, state)` of a state of other types", ours="the model's", tinygrad="the state's",
        why="what a model computes in does not depend on the file that it was loaded from"),
    "gradients on the way": Meaning(
        "`y.grad` of a tensor on the way to a loss, or of a clone", ours="None", tinygrad="its gradient",
        why="as in PyTorch: what is not asked for is not kept; `y.requires_grad = True` asks"),
}



class PyTorchMeaning(NamedTuple):
    """A call that PyTorch takes differently, and tinygrad as we do."""
    call: str
    ours: str
    pytorch: str
    why: str


OF_PYTORCH: dict[str, PyTorchMeaning] = {
    "one axis of max": PyTorchMeaning(
        "`x.max(1)`, `x.min(1)`", ours="values", pytorch="values and places",
        why="as in tinygrad; `x.max(dim=1)` is PyTorch's pair in any case"),
    "a new layer": PyTorchMeaning(
        "`nn.Dropout(0.5)(x)` before `train()` or `eval()`", ours="as `Tensor.training` says", pytorch="trains",
        why="as in tinygrad: one switch for all layers that nobody told"),
}

Library = Literal["glassgrad", "tinygrad", "pytorch"]
followed: Library = "glassgrad"


def meaning(name: str) -> str:
    """What a call of the table is to do now.

    >>> meaning("gelu")
    'none'
    """
    if name in OF_PYTORCH:
        return OF_PYTORCH[name].pytorch if followed == "pytorch" else OF_PYTORCH[name].ours
    row = MEANINGS[name]
    return row.tinygrad if followed == "tinygrad" else row.ours


def follow(library: Library) -> None:
    """Take the calls of the table as this library does, from now on.

    >>> follow("tinygrad"); meaning("gelu")
    'tanh'
    >>> follow("glassgrad")
    """
    global followed
    followed = library
