"""Comparisons with a plain PyTorch loop: learning, speed and memory. See README.md."""
