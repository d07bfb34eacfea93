"""Encodings added to token embeddings."""

from posenc.additive.learned import Learned
from posenc.additive.sinusoidal import Sinusoidal

__all__ = ["Learned", "Sinusoidal"]
