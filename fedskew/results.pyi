# What is left of runs and sweeps, for reading. ``lazy.py`` reads this file.

from engine.record.run_folder import RunFolder as RunFolder
from engine.results.claims import Claim as Claim
from engine.results.claims import PaperTable as PaperTable
from engine.results.frames.frames import Frames as Frames
from engine.results.frames.frames import load_results as load_results
from engine.results.results import Results as Results
