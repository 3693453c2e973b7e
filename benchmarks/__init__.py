"""Comparisons with a plain PyTorch loop: learning (``benchmarks.learning``), speed and memory (``benchmarks.speed``)."""
