"""What a run's generator makes, beside the images that it was trained on.

Read ``generated.py`` first.
"""
