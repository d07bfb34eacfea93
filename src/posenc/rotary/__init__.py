"""Encodings that rotate queries and keys."""

from posenc.rotary.learned_scale import LearnedScaleRope
from posenc.rotary.rope import Rope, rerotate

__all__ = ["LearnedScaleRope", "Rope", "rerotate"]
