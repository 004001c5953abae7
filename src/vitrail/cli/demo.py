"""vitrail demo: one image through the front end, with its numbers."""

from __future__ import annotations

__all__ = ["demo"]


def demo(*, seed: int = 0) -> None:
    """Send a drawn image through the front end of ViT-B/16 and show what comes out.

    Parameters
    ----------
    seed
        The image's seed: the same seed draws the same image.
    """
    raise NotImplementedError
