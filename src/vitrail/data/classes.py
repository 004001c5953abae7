"""A folder with a subfolder per class, named after the class."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from vitrail.data.source import SPLITS
from vitrail.errors import VitrailError, require
from vitrail.images.decode import Pixels, decode
from vitrail.images.folder import SUFFIXES, image_files

__all__ = ["ClassFolder", "class_folders", "class_names"]


def class_folders(root: Path) -> list[Path]:
    """Return the subfolders, sorted by name, without hidden ones."""
    return sorted(path for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))


def class_names(paths: Sequence[str]) -> list[str]:
    """Return the class of every file by its path in a folder; [] if the folder has no classes.

    It has classes if every file is in a subfolder and there are two or more of those. A first level of splits is
    passed over.

    >>> class_names(["train/cat/1.png", "train/dog/2.png", "test/cat/3.png"])
    ['cat', 'dog', 'cat']
    >>> class_names(["cat/1.png", "2.png"])
    []
    """
    folders = [PurePosixPath(path).parts[:-1] for path in paths]
    splits = {name for names in SPLITS.values() for name in names}
    if all(parts and parts[0].lower() in splits for parts in folders):
        folders = [parts[1:] for parts in folders]
    names = [parts[0] if parts else "" for parts in folders]
    return names if "" not in names and len(set(names)) > 1 else []


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
