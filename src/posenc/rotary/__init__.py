"""Encodings that rotate queries and keys."""

from posenc.rotary.axial import AxialRope
from posenc.rotary.learned_scale import LearnedScaleRope
from posenc.rotary.mixed import MixedRope
from posenc.rotary.mrope import MRope
from posenc.rotary.rerotate import rerotate
from posenc.rotary.rope import Rope
from posenc.rotary.xpos import XPos

__all__ = ["AxialRope", "LearnedScaleRope", "MRope", "MixedRope", "Rope", "XPos", "rerotate"]
