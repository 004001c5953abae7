"""Locks that end with their process: whatever ends it, the system lets go of them."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

__all__ = ["lock"]


def lock(path: Path, flags: int = os.O_RDONLY) -> int | None:
    """Open a file or folder and lock it; return its descriptor, or None while someone else holds the lock.

    Closing the descriptor releases the lock. Raises OSError where there is nothing to open, or where the disk has no
    locks.
    """
    while True:
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                return descriptor
        except BlockingIOError:
            os.close(descriptor)
            return None
        except FileNotFoundError:
            pass
        except OSError:
            os.close(descriptor)
            raise
        os.close(descriptor)  # what was locked has lost its name meanwhile: try what the name means now
