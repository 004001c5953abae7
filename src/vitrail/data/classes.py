"""A folder with a subfolder per class, named after the class."""

from __future__ import annotations

from pathlib import Path

from vitrail.errors import VitrailError, require
from vitrail.images.decode import Pixels, decode
from vitrail.images.folder import SUFFIXES, image_files

__all__ = ["ClassFolder", "class_folders"]


def class_folders(root: Path) -> list[Path]:
    """Return the subfolders, sorted by name, without hidden ones."""
    return sorted(path for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))


class ClassFolder:
    """Images sorted by class, then by path."""

    channels: int = 3

    def __init__(self, root: Path) -> None:
        folders = class_folders(root)
        require(
            len(folders) != 1,
            f"{root} has one class folder ({folders[0].name if folders else ''}), and classification needs two; "
            "give two or more",
        )
        self.classes = tuple(folder.name for folder in folders)
        self.items: list[tuple[Path, int]] = []
        for label, folder in enumerate(folders):
            try:
                self.items += [(path, label) for path in image_files(folder)]
            except VitrailError:
                endings = ", ".join(sorted(SUFFIXES))
                raise VitrailError(
                    f"class folder {folder} has no images; remove it, or add files ending in {endings}"
                ) from None

    @property
    def labels(self) -> list[int]:
        return [label for _, label in self.items]

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> tuple[Pixels, int]:
        path, label = self.items[index]
        return decode(path), label
