"""File locks that the operating system releases when their process ends, however it ends."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

__all__ = ["lock"]


def lock(path: Path, flags: int = os.O_RDONLY) -> int | None:
    """Open a file or folder and lock it; return its descriptor, or None if another process has locked it.

    Closing the descriptor releases the lock. Raises OSError if the path cannot be opened or the disk has no locks.
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
        os.close(descriptor)  # the file was renamed or removed before it was locked: open the path again
