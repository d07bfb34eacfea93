"""Which layers see the whole text: an extension is for them."""

from collections.abc import Collection

from posenc.interop.extend_explained import LENGTH
from posenc.interop.model_scheme import ModelScheme

__all__ = ["about_windows", "reaching"]


def reaching(model: ModelScheme) -> list[int]:
    """The layers that rotate and see the whole text; all that rotate where each has a window."""
    rotating = [i for i, scheme in enumerate(model.layers) if scheme.rotary is not None]
    return [i for i in rotating if not _is_near(model, i)] or rotating


def _is_near(model: ModelScheme, layer: int) -> bool:
    """Whether a layer has a window, of a width that the config says or leaves out."""
    kind = model.layer_types[layer] if model.layer_types else None
    return kind == "sliding_attention" or bool(model.windows and model.windows[layer])


def about_windows(model: ModelScheme, layers: Collection[int], original: int) -> list[str]:
    """What an extension means for layers that see no farther than they were trained at."""
    near = [i for i in layers if _is_near(model, i)]
    widths = {model.windows[i] for i in near if model.windows} - {None}
    if not near or any(width and width > original for width in widths):
        return []
    if len(near) == len(layers):
        return [
            f"all layers that rotate have a window ({_listed(widths)}) and see no farther than "
            f"before: a larger {LENGTH} alone would do"
        ]
    return [
        f"layers with a window ({_listed(widths)}) share this rotation, so theirs changes as well: "
        "the config has one section for all layers"
    ]


def _listed(widths: set[int | None]) -> str:
    return ", ".join(f"{width} tokens" for width in sorted(filter(None, widths))) or "of any width"
