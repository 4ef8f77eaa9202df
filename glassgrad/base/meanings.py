"""Calls that mean one thing here, mostly PyTorch's, and another in tinygrad. In: whom to follow. Out: what is meant.

A script that says `import tinygrad` (see `glassgrad/compat`) was written against tinygrad's
numbers, so from that import on tinygrad is followed. The code that a row is about asks `meaning`, and no other does:
what glassgrad computes for itself, it asks for in full (`x.gelu("none")`).
"""

from __future__ import annotations

from typing import Literal, NamedTuple

__all__ = ["MEANINGS", "Meaning", "follow", "meaning"]


class Meaning(NamedTuple):
    """A call that the two libraries take differently."""
    call: str           # as a user writes it
    ours: str
    tinygrad: str
    why: str            # what is gained by ours, when nobody says `import tinygrad`


MEANINGS: dict[str, Meaning] = {
    "gelu": Meaning(
        "x.gelu()", ours="none", tinygrad="tanh",
        why="models that come from PyTorch give the numbers they gave there"),
    "step outside training": Meaning(
        "optimizer.step() while Tensor.training is False", ours="step", tinygrad="refuse",
        why="PyTorch's optimizers know nothing of modes; tinygrad's refusal finds a forgotten Tensor.training"),
    "names the model lacks": Meaning(
        "load_state_dict(model, state) of a state with more names", ours="refuse", tinygrad="leave out",
        why="a name that is loaded nowhere is a mistake more often than not"),
    "types of a loaded state": Meaning(
        "load_state_dict(model, state) of a state of other types", ours="the model's", tinygrad="the state's",
        why="what a model computes in does not depend on the file that it was loaded from"),
    "gradients on the way": Meaning(
        "y.grad of a tensor on the way to a loss, or of a clone", ours="None", tinygrad="its gradient",
        why="as in PyTorch: what is not asked for is not kept; y.requires_grad = True asks"),
}

followed: Literal["glassgrad", "tinygrad"] = "glassgrad"


def meaning(name: str) -> str:
    """What a call of the table is to do now.

    >>> meaning("gelu")
    'none'
    """
    row = MEANINGS[name]
    return row.tinygrad if followed == "tinygrad" else row.ours


def follow(library: Literal["glassgrad", "tinygrad"]) -> None:
    """Take the calls of the table as this library does, from now on.

    >>> follow("tinygrad"); meaning("gelu")
    'tanh'
    >>> follow("glassgrad")
    """
    global followed
    followed = library
