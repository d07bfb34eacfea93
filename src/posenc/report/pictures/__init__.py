"""Pictures of what an encoding does, one drawing for each contract, from the objects themselves.

    posenc show rope --figure rope.png

What is drawn follows from the fields that a scheme sets; no encoding has a drawing of its own. The
numbers are in `picture`, the ink in `draw`, which alone needs matplotlib.
"""

from posenc.report.pictures.panels import Heat, Lines, Maps, Panel, Picture
from posenc.report.pictures.picture import picture

__all__ = ["Heat", "Lines", "Maps", "Panel", "Picture", "picture"]
