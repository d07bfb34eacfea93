"""M-RoPE from a config: which coordinate turns which pair."""

from posenc.interop.errors import about
from posenc.interop.families import Family
from posenc.interop.keys import Keys
from posenc.rotary import MRope, Rope

__all__ = ["MROPE_KEYS", "with_axes"]

MROPE_KEYS = frozenset({"mrope_section", "xdrope_section", "mrope_interleaved"})


def with_axes(rope: Rope, family: Family, section: Keys) -> MRope:
    """The rotation with a coordinate for each pair, as the family orders them."""
    num_pairs = (rope.rotary_dim or rope.head_dim) // 2
    interleaved = family.order == "interleaved"
    if section.flag("mrope_interleaved", default=interleaved) != interleaved:
        section.fail("mrope_interleaved", not interleaved, f"what this family does: {family.order}")
    sections = _sections(family, section, num_pairs)
    if family.order == "alternating":  # ERNIE counts rows, columns, then time
        sections = (sections[-1], *sections[:-1])
    with about(f"{section.path}mrope_section"):
        return MRope(rope, sections, family.order)


def _sections(family: Family, section: Keys, num_pairs: int) -> tuple[int, ...]:
    axes = len(family.sections) or 4
    for name in ("mrope_section", "xdrope_section"):
        if name in section:
            counts = section.numbers(name, axes, "coordinate")
            whole = [int(count) for count in counts if count >= 0 and float(count).is_integer()]
            if len(whole) != axes or sum(whole) != num_pairs:
                section.fail(name, list(counts), f"whole numbers that add up to {num_pairs} pairs")
            return tuple(whole)
    if not family.sections:
        section.missing("mrope_section", "this family has no published sections")
    published = _clipped(family, num_pairs)
    section.read.defaults[f"{section.path}mrope_section"] = list(published)
    return published


def _clipped(family: Family, num_pairs: int) -> tuple[int, ...]:
    """The published sections; interleaved ones stop at the last pair of a narrower head."""
    if family.order != "interleaved":
        return family.sections
    axes = len(family.sections)
    counts = [0] * axes
    for pair in range(num_pairs):
        place, axis = divmod(pair, axes)
        counts[axis if place < family.sections[axis] else 0] += 1
    return tuple(counts)
