"""Tables that a checkpoint holds although they follow from its config: frequencies, position ids.

Versions of one library have saved them, left them out, or saved them rounded. Here nothing needs
them, so they are taken out; and since a checkpoint may have been trained under what it holds (ESM's
is not its formula), they are compared first.
"""

import re
from collections.abc import Mapping

import torch
from torch import Tensor

from posenc.contracts import Scheme
from posenc.interop.checkpoints.files import CheckpointError

__all__ = ["without_tables"]

FREQUENCIES = re.compile(r"(^|\.|_)inv_freq$|(^|\.)rope\.freqs$")
POWERS = 2.0**-19  # float32 powers, as others make them, of bases up to millions
POSITION_IDS = re.compile(r"(^|\.)position_ids$")


def without_tables(state: Mapping[str, Tensor], scheme: Scheme) -> dict[str, Tensor]:
    """The tensors of a checkpoint that are weights; tables equal to the scheme's are dropped.

    >>> state = {"q.weight": torch.ones(8, 8), "rotary_emb.inv_freq": torch.tensor([1.0, 0.01])}
    >>> list(without_tables(state, Scheme(rotary=Rope(4))))         # what load_state_dict expects
    ['q.weight']

    Takes out `inv_freq`, Meta's `rope.freqs` and `position_ids`. Raises CheckpointError where one is
    not what the scheme would make to the precision that it is stored in: with its name and the
    largest difference. Drop it or make a scheme of it, as the model was trained.
    """
    kept = {}
    for name, tensor in state.items():
        if FREQUENCIES.search(name):
            _check_frequencies(name, tensor, scheme)
        elif POSITION_IDS.search(name):
            _check_ids(name, tensor)
        else:
            kept[name] = tensor
    return kept


def _check_frequencies(name: str, stored: Tensor, scheme: Scheme) -> None:
    frequencies = getattr(scheme.rotary, "frequencies", None)
    if frequencies is None:
        raise CheckpointError(f"{name!r} holds frequencies, but the scheme rotates nothing")
    expected = frequencies().inv_freq.abs()  # no file says which way pairs turn
    if stored.shape != expected.shape:
        raise CheckpointError(
            f"{name!r} holds {list(stored.shape)} frequencies, the scheme {list(expected.shape)}"
        )
    difference = ((stored.cpu().double() - expected) / expected.clamp(min=1e-300)).abs().max()
    if not difference <= torch.finfo(stored.dtype).eps + POWERS:
        rounded = torch.equal(stored.cpu().float(), expected.bfloat16().float())
        told = ", as if rounded to bfloat16" if rounded else ""
        raise CheckpointError(
            f"{name!r} differs from the frequencies of {scheme.rotary} by up to "
            f"{difference.item():.3g} of their size{told}"
        )


def _check_ids(name: str, stored: Tensor) -> None:
    ids = torch.arange(stored.shape[-1])
    if stored.is_floating_point() or not (stored.cpu() == ids).all():
        raise CheckpointError(f"{name!r} is not 0, 1, 2, …: the model has positions of its own")
