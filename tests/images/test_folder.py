import pytest

from vitrail.errors import VitrailError
from vitrail.images.folder import image_files


def write(folder, *names):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"x")


def test_files_are_found_below_the_folder_in_the_order_of_their_paths(tmp_path):
    write(tmp_path, "b/2.JPG", "b/10.png", "a.png", "notes.txt", ".hidden.png", ".cache/3.png", "b/c/1.tiff")
    found = [str(path.relative_to(tmp_path)) for path in image_files(tmp_path)]
    assert found == ["a.png", "b/10.png", "b/2.JPG", "b/c/1.tiff"]


def test_a_loop_of_links_ends(tmp_path):
    write(tmp_path, "in/1.png")
    (tmp_path / "in" / "again").symlink_to(tmp_path, target_is_directory=True)
    (tmp_path / "gone.png").symlink_to(tmp_path / "nowhere.png")
    (tmp_path / "link.png").symlink_to(tmp_path / "in" / "1.png")
    assert [path.name for path in image_files(tmp_path)] == ["1.png", "link.png"]


def test_a_limit_spreads_over_the_folder(tmp_path):
    write(tmp_path, *(f"{folder}/{index}.png" for folder in "abc" for index in range(7)))
    found = image_files(tmp_path, limit=5)
    assert len(found) == 5
    assert {path.parent.name for path in found} == {"a", "b", "c"}
    with pytest.raises(VitrailError, match="limit 0"):
        image_files(tmp_path, limit=0)


def test_a_folder_without_images_is_refused(tmp_path):
    with pytest.raises(VitrailError, match="has no images"):
        image_files(tmp_path)
    with pytest.raises(VitrailError, match="not a folder"):
        image_files(tmp_path / "nowhere")
