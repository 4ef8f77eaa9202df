"""Save a training in one file and resume it bit for bit. In: model, optimizer, step. Out: a checkpoint file; all of it
restored.

A checkpoint has the tensors of the model (`model.*`) and of the optimizer (`optimizer.*`, without the parameters
themselves), the plain numbers in the optimizer (learning rates, counters), the state of the random numbers, the step,
and extra data of the user's. It is a safetensors file, written atomically, and contains no code.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from glassgrad.base.errors import InputError
from glassgrad.compiler.graph import UOp
from glassgrad.nn.modules.object_tree import ObjectPart, walk
from glassgrad.nn.state.formats.byte_source import Readable, Source
from glassgrad.nn.state.formats.safetensors import METADATA, read_header, write_file
from glassgrad.nn.state.state_dict import compare, get_state_dict, put
from glassgrad.tensor import checks
from glassgrad.tensor.formulas.random_numbers import streams
from glassgrad.tensor.jit_access import wants_gradient
from glassgrad.tensor.tensor import Tensor

FORMAT = "glassgrad checkpoint 1"


class Checkpoint(NamedTuple):
    """The contents of a checkpoint besides tensors."""
    step: int
    extra: Any


def save_checkpoint(path: str | os.PathLike[str], model: Any, optimizer: Any = None, step: int = 0,
                    extra: Any = None) -> None:
    """Write a training to a file, with all that `load_checkpoint` needs to resume it exactly. `optimizer` may be a
    list: [optimizer, schedule, scaler]. `extra` is anything that JSON can hold.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_checkpoint(folder + "/run.safetensors", {"w": Tensor([1.0, 2.0])}, step=7, extra={"best": 0.5})
    ...     model = {"w": Tensor.zeros(2)}
    ...     load_checkpoint(folder + "/run.safetensors", model), model["w"].tolist()
    (Checkpoint(step=7, extra={'best': 0.5}), [1.0, 2.0])
    """
    checks.of_kind("PathLike", "save_checkpoint", path=path)
    step = checks.of_kind("int", "save_checkpoint", step=step)
    seed, count = streams.state()
    tensors = _tensors(model, optimizer)
    first: dict[UOp, str] = {}
    same = {name: first[tensor.uop] for name, tensor in tensors.items()
            if wants_gradient(tensor) is False and first.setdefault(tensor.uop, name) != name}
    state = {"step": step, "random": [seed, count], "same": same, "extra": extra,
             "numbers": {place.name: place.value for place in _numbers(optimizer)}}
    try:
        text = json.dumps(state)
    except (TypeError, ValueError, RecursionError) as problem:
        raise InputError("a checkpoint's step and extra are written as JSON", given=str(problem),
                         expected="numbers, texts, lists and dicts with texts as keys",
                         fix="put tensors into the model or the optimizer, or convert them with .tolist()") from None
    if json.loads(text)["extra"] != extra and extra == extra:
        raise InputError("extra would come back changed", given="keys that are not texts, or tuples",
                         expected="what JSON gives back as it was: lists, and dicts with texts as keys",
                         fix="write [..] for (..), and texts for keys")
    write_file({name: tensor for name, tensor in tensors.items() if name not in same}, path,
               {"format": FORMAT, "training": text})


def load_checkpoint(path: Readable, model: Any, optimizer: Any = None) -> Checkpoint:
    """Resume a saved training: restore model, optimizer and random numbers, and return step and extra. Model and
    optimizer must be constructed as they were for the training; if anything does not fit, all of it is reported and
    nothing is changed. Without an optimizer, the one in the file is ignored.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_checkpoint(folder + "/run.safetensors", [Tensor([3.0])], step=2)
    ...     load_checkpoint(folder + "/run.safetensors", [Tensor([0.0])]).step
    2
    """
    source = Source(path, "load_checkpoint")
    header = read_header(source)
    training = _training(source, header.fields.get(METADATA, {}))
    saved = {name: source.tensor(*entry) for name, entry in header.entries.items()}
    # shared counters stay one value: optimizers compute them once
    saved |= {name: saved[other] for name, other in training["same"].items() if other in saved}
    if optimizer is None:
        saved = {name: tensor for name, tensor in saved.items() if not name.startswith("optimizer.")}
    # state that an optimizer makes in its first step is None now, and is set here
    places = {place.name: place for place in walk(optimizer, "optimizer.", lambda value: value is None)}
    created = {name: saved.pop(name) for name in list(saved) if name in places and _can_set(places[name])}
    found = compare(_tensors(model, optimizer), saved, strict=True)
    if not found.perfect:
        raise found._replace(hint=found.hint or "construct the model and the optimizer as they were for this training, "
                             "or name another file").error()
    put(found)
    for name, tensor in created.items():
        _set(places[name], tensor)
    for place in list(_numbers(optimizer)):
        value = training["numbers"].get(place.name)
        value = tuple(value) if isinstance(value, list) else value
        if _is_number(value) and value != place.value:
            _set(place, value)
    streams.restore(*training["random"])
    return Checkpoint(training["step"], training["extra"])


def _tensors(model: Any, optimizer: Any) -> dict[str, Tensor]:
    """Return the tensors of both. Those that the optimizer shares with the model, or has under two names, are returned
    once."""
    tensors = get_state_dict(model, "model.")
    known = {id(tensor) for tensor in tensors.values()}
    for name, tensor in get_state_dict(optimizer, "optimizer.").items():
        if id(tensor) not in known:
            known.add(id(tensor))
            tensors[name] = tensor
    return tensors


def _numbers(optimizer: Any) -> list[ObjectPart]:
    """Return the plain numbers in an optimizer, and tuples of them, that can be assigned."""
    return [place for place in walk(optimizer, "", _is_number) if _can_set(place)]


def _is_number(value: Any) -> bool:
    several = value if type(value) is tuple and value else (value,)
    return all(type(number) in (bool, int, float) for number in several)


def _can_set(place: ObjectPart) -> bool:
    return place.holder is not None and not isinstance(place.holder, tuple)


def _set(place: ObjectPart, value: Any) -> None:
    if hasattr(place.holder, "__setitem__"):
        place.holder[place.key] = value
    else:
        setattr(place.holder, place.key, value)


def _training(source: Source, metadata: Mapping[str, str]) -> dict[str, Any]:
    """Return the JSON part of a checkpoint, checked."""
    if metadata.get("format") != FORMAT:
        raise source.wrong("not a checkpoint", given=repr(metadata.get("format", "no format"))[:80],
                           expected=repr(FORMAT),
                           fix="read files of tensors with safe_load; checkpoints are written by save_checkpoint")
    try:
        found = json.loads(metadata["training"])
        seed, count = found["random"]
        sound = all(type(n) is int and n >= 0 for n in (seed, count)) and seed < 1 << 32 \
            and {"step", "extra"} <= found.keys() and isinstance(found["numbers"], dict) \
            and all(isinstance(name, str) for name in found["same"].values())
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError):      # not JSON, or other JSON
        sound = False
    if not sound:
        raise source.wrong("the checkpoint's notes are damaged", given=repr(metadata.get("training", ""))[:80],
                           expected="JSON with step, random, same, numbers and extra")
    return found  # type: ignore[no-any-return]
