"""Encodings added to token embeddings."""

from posenc.additive.axial_learned import AxialLearned
from posenc.additive.axial_sinusoidal import AxialSinusoidal
from posenc.additive.fourier import FourierBands, RandomFourier
from posenc.additive.learned import Learned
from posenc.additive.resize import resize_grid
from posenc.additive.sinusoidal import Sinusoidal

__all__ = [
    "AxialLearned",
    "AxialSinusoidal",
    "FourierBands",
    "Learned",
    "RandomFourier",
    "Sinusoidal",
    "resize_grid",
]
