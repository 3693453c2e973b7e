"""Pictures that a run's folder gets when the run ends: curves, partition, classes, matrices.

It offers ``draw_pictures``, which decides what there is to draw. Read ``folder.py`` first.
"""

from engine.analysis.run_pictures.folder import draw_pictures

__all__ = ["draw_pictures"]
