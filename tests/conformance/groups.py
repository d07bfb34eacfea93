"""The groups of the page beside the rotary text models, each with its list of cases."""

from collections.abc import Callable

from conformance import positions_of_models, special
from conformance.biases import alibi_checks, bucket_checks
from conformance.check import Check
from conformance.checkpoints import checkpoint_checks
from conformance.decomposed import decomposed_checks
from conformance.learned_tables import axial_table_checks, resized_checks, table_checks
from conformance.query_scales import scale_checks
from conformance.relative_vectors import disentangled_checks, shaw_checks, transformer_xl_checks
from conformance.several_axes import mrope_checks, vision_checks
from conformance.sinusoids import (
    axial_checks,
    fourier_checks,
    sinusoid_checks,
    timestep_checks,
)
from conformance.window_tables import window_checks

__all__ = ["GROUPS"]

# title -> the cases; built when asked for, because some make a config of each model type
GROUPS: dict[str, Callable[[], list[Check]]] = {
    "M-RoPE": mrope_checks,
    "Vision encoders": vision_checks,
    "Positions of text, images and videos": lambda: positions_of_models.CHECKS,
    "ALiBi": alibi_checks,
    "Buckets of distance": bucket_checks,
    "Tables of windows": window_checks,
    "Disentangled vectors": disentangled_checks,
    "Transformer-XL and its kin": transformer_xl_checks,
    "Vectors of clipped distances": shaw_checks,
    "Decomposed vectors of rows and columns": decomposed_checks,
    "Queries scaled by position": scale_checks,
    "Other rotations, and keys that code and weights read differently": lambda: special.CHECKS,
    "Sinusoids": sinusoid_checks,
    "Sinusoids of several coordinates": axial_checks,
    "Learned tables": table_checks,
    "Learned tables of several coordinates": axial_table_checks,
    "Tables of cells for images of another size": resized_checks,
    "Fourier features": fourier_checks,
    "Diffusion times": timestep_checks,
    "Checkpoints in the other pairing": checkpoint_checks,
}
