"""Images and files of the data sets' layouts in small, for tests."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from PIL import Image


def encode(pixels: np.ndarray, kind: str = "png") -> bytes:
    """[H, W] or [H, W, 3] -> file content."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind)
    return buffer.getvalue()


def flat(colour: int | tuple[int, int, int], size: tuple[int, int] = (64, 64), kind: str = "jpeg") -> bytes:
    """An image of one colour (three values) or grey level, which JPEG keeps within 2."""
    return encode(np.full((size[1], size[0], *([3] if isinstance(colour, tuple) else [])), colour, np.uint8), kind)


def write(path: Path, content: bytes | str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)


def colours(images: np.ndarray) -> list[int]:
    """The red of each image's middle."""
    return images[:, 0, images.shape[2] // 2, images.shape[3] // 2].tolist()
