"""A leaderboard: the results of any number of folders as one static page, whose every cell can be made again.

It offers ``write``, which makes the page, the same as JSON, and the config of every run behind it. Read ``board.py``
first (what a row, a column and a cell are), then ``folder.py``.
"""

from fedskew.lab.leaderboard.board import Board, board_of
from fedskew.lab.leaderboard.folder import write

__all__ = ["Board", "board_of", "write"]
