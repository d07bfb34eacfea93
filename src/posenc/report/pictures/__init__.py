"""Pictures of what an encoding does, one drawing for each contract, from the objects themselves.

    posenc show rope --figure rope.png

What is drawn follows from the fields that a scheme sets; no encoding has a drawing of its own. The
numbers are in `picture`, what they say in `facts`, the ink in `draw`, which alone needs matplotlib.
"""

from posenc.report.pictures.facts import facts
from posenc.report.pictures.panels import Heat, Lines, Maps, Panel, Picture
from posenc.report.pictures.picture import picture

__all__ = ["Heat", "Lines", "Maps", "Panel", "Picture", "facts", "picture"]
