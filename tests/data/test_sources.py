"""Every source gives the same images by the same indices, and says in one line what is wrong with its files."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import struct
import tarfile
from pathlib import Path

import numpy as np
import pyarrow as arrow
import pytest
from PIL import Image
from pyarrow import parquet

from vitrail.data.open import open_source
from vitrail.data.shapes import SHAPES, Shapes
from vitrail.errors import VitrailError
from vitrail.geometry import Size
from vitrail.images.decode import ImageError

RANDOM = np.random.default_rng(0)
CIFAR = RANDOM.integers(0, 256, (12, 32, 32, 3), dtype=np.uint8)
LABELS = np.arange(12) % 10


def png(pixels: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def refused(data: object, *, split: str = "train") -> str:
    with pytest.raises(VitrailError) as caught:
        open_source(data, split)  # type: ignore[arg-type]
    line = str(caught.value)
    assert "\n" not in line
    return line


# ── CIFAR ───────────────────────────────────────────────────────────────────────────────────────────────────────


def write_cifar(folder: Path, form: str) -> Path:
    """Two images in each of the five batches, two in the test's."""
    folder.mkdir(parents=True)
    parts = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]
    for number, name in enumerate(parts):
        images, labels = CIFAR[2 * number : 2 * number + 2], LABELS[2 * number : 2 * number + 2]
        planes = images.transpose(0, 3, 1, 2).reshape(2, 3072)
        if form == "python":
            held = {b"data": planes, b"labels": labels.tolist(), b"batch_label": b"x"}
            (folder / name).write_bytes(pickle.dumps(held, protocol=2))
        elif form == "binary":
            (folder / f"{name}.bin").write_bytes(np.hstack([labels[:, None].astype(np.uint8), planes]).tobytes())
        else:
            (folder / f"{name}.png").write_bytes(png(images.reshape(2, 1024, 3)))
    if form == "sheets":
        (folder / "train_lables.json").write_text(json.dumps(LABELS[:10].tolist()))
        (folder / "test_lables.json").write_text(json.dumps(LABELS[10:].tolist()))
    return folder


@pytest.mark.parametrize("form", ["python", "binary", "sheets"])
def test_the_forms_of_cifar10_are_one_set(tmp_path: Path, form: str):
    folder = write_cifar(tmp_path / form, form)
    train, test = open_source(folder), open_source(folder, "test")
    assert (len(train), len(test), train.classes[6]) == (10, 2, "frog")
    for index in range(10):
        pixels, label = train[index]
        np.testing.assert_array_equal(pixels, CIFAR[index])
        assert label == LABELS[index]
    np.testing.assert_array_equal(test[1][0], CIFAR[11])


def test_cifar100_takes_the_fine_label(tmp_path: Path):
    planes = CIFAR.transpose(0, 3, 1, 2).reshape(12, 3072)
    rows = np.hstack([np.full((12, 1), 7), 90 + LABELS[:, None] % 10, planes]).astype(np.uint8)
    (tmp_path / "train.bin").write_bytes(rows.tobytes())
    source = open_source(tmp_path)
    assert (len(source.classes), source[3][1]) == (100, 93)
    np.testing.assert_array_equal(source[3][0], CIFAR[3])


def test_a_cifar_pickle_runs_no_code(tmp_path: Path):
    folder = write_cifar(tmp_path / "python", "python")

    class Payload:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "ran",))

    (folder / "data_batch_3").write_bytes(pickle.dumps(Payload(), protocol=2))
    assert "data_batch_3 is not a CIFAR pickle" in refused(folder)
    assert not (tmp_path / "ran").exists()


def test_cifar_that_is_not_whole_is_refused(tmp_path: Path):
    folder = write_cifar(tmp_path / "binary", "binary")
    (folder / "data_batch_2.bin").write_bytes(b"\x01" * 3000)
    assert "3,000 bytes, not whole rows of 3,073" in refused(folder)
    (folder / "data_batch_2.bin").unlink()
    assert "lacks data_batch_2.bin" in refused(folder)


# ── IDX ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def write_idx(folder: Path, *, zipped: bool, labels: np.ndarray = LABELS) -> np.ndarray:
    folder.mkdir()
    images = RANDOM.integers(0, 256, (12, 28, 20), dtype=np.uint8)
    for stem in ("train", "t10k"):
        for kind, values in (("images-idx3", images), ("labels-idx1", labels.astype(np.uint8))):
            data = struct.pack(f">BBBB{values.ndim}I", 0, 0, 8, values.ndim, *values.shape) + values.tobytes()
            name = folder / f"{stem}-{kind}-ubyte{'.gz' if zipped else ''}"
            name.write_bytes(gzip.compress(data) if zipped else data)
    return images


@pytest.mark.parametrize("zipped", [False, True])
def test_idx_files_are_read_plain_and_gzipped(tmp_path: Path, zipped: bool):
    images = write_idx(tmp_path / "fashion-mnist", zipped=zipped)
    source = open_source(tmp_path / "fashion-mnist")
    pixels, label = source[5]
    assert (pixels.shape, label, source.channels, source.classes[9]) == ((28, 20, 1), 5, 1, "ankle boot")
    np.testing.assert_array_equal(pixels[..., 0], images[5])


def test_damaged_idx_and_labels_out_of_range_are_one_line(tmp_path: Path):
    write_idx(tmp_path / "a", zipped=False, labels=LABELS + 5)
    assert "image 5 has label 10, out of range for 10 classes" in refused(tmp_path / "a")
    write_idx(tmp_path / "b", zipped=True)
    file = tmp_path / "b" / "train-images-idx3-ubyte.gz"
    file.write_bytes(file.read_bytes()[:-40])
    assert "is damaged" in refused(tmp_path / "b")


# ── class folders ───────────────────────────────────────────────────────────────────────────────────────────────


def write_folder(root: Path, counts: dict[str, int]) -> Path:
    for name, count in counts.items():
        (root / name).mkdir(parents=True)
        for number in range(count):
            pixels = np.full((5, 7 + number, 3), 10 * number, np.uint8)
            (root / name / f"{number:02d}.png").write_bytes(png(pixels))
    return root


def test_a_folder_per_class_holds_out_every_tenth_image(tmp_path: Path):
    root = write_folder(tmp_path / "set", {"bee": 13, "ant": 12})
    train, test = open_source(root), open_source(root, "test")
    assert train.classes == ("ant", "bee")
    assert (len(train), len(test)) == (23, 2)
    assert train[0][0].shape == (5, 7, 3)
    assert test[0][0][0, 0, 0] == 90
    assert [train[index][1] for index in (10, 11)] == [0, 1]


def test_folders_named_train_and_val_are_the_splits(tmp_path: Path):
    write_folder(tmp_path / "train", {"ant": 3, "bee": 2})
    write_folder(tmp_path / "val", {"ant": 1, "bee": 1})
    assert (len(open_source(tmp_path)), len(open_source(tmp_path, "test"))) == (5, 2)
    write_folder(tmp_path / "val", {"wasp": 1})
    assert "different class folders (wasp)" in refused(tmp_path)


def test_a_damaged_image_is_named_and_the_others_keep_their_places(tmp_path: Path):
    root = write_folder(tmp_path / "set", {"ant": 3, "bee": 3})
    before = [open_source(root)[index] for index in (0, 2, 3)]
    (root / "ant" / "01.png").write_bytes(b"not a picture")
    source = open_source(root)
    with pytest.raises(ImageError, match=r"01\.png: not a readable image"):
        source[1]
    for (pixels, label), index in zip(before, (0, 2, 3), strict=True):
        np.testing.assert_array_equal(source[index][0], pixels)
        assert source[index][1] == label


def test_an_empty_class_folder_one_class_and_no_data_are_one_line_each(tmp_path: Path):
    assert "has no images" in refused(write_folder(tmp_path / "a", {"ant": 2, "bee": 0}))
    assert "one class folder (ant)" in refused(write_folder(tmp_path / "b", {"ant": 2}))
    (tmp_path / "c").mkdir()
    assert "not a supported kind of data" in refused(tmp_path / "c")
    assert "does not exist" in refused(tmp_path / "nowhere")
    (tmp_path / "d.txt").write_text("x")
    assert "not a supported kind of data" in refused(tmp_path / "d.txt")
    assert "too few to hold any out" in refused(write_folder(tmp_path / "e", {"ant": 2, "bee": 2}), split="test")


# ── tar and Parquet ─────────────────────────────────────────────────────────────────────────────────────────────


def write_tar(path: Path, first: int, *, bad: int = -1, label: str | None = None) -> Path:
    with tarfile.open(path, "w") as archive:
        for index in range(first, first + 6):
            data = b"broken" if index == bad else png(CIFAR[index])
            for ending, content in (("png", data), ("cls", (label or str(LABELS[index] % 3)).encode())):
                member = tarfile.TarInfo(f"some/{index:04d}.{ending}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    return path


def test_tar_shards_are_read_at_random(tmp_path: Path):
    shards = [write_tar(tmp_path / f"train-{n}.tar", 6 * n, bad=8) for n in range(2)]
    write_tar(tmp_path / "test-0.tar", 0)
    source = open_source(tmp_path)
    assert (len(source), len(open_source(tmp_path, "test")), source.classes) == (12, 6, ("0", "1", "2"))
    for index in (11, 0, 7):
        np.testing.assert_array_equal(source[index][0], CIFAR[index])
        assert source[index][1] == LABELS[index] % 3
    with pytest.raises(ImageError, match=r"train-1\.tar:some/0008\.png: not a readable image"):
        source[8]
    assert len(open_source(shards)) == 11  # the tenth is held out


def test_tars_that_are_none_or_have_no_labels_are_one_line(tmp_path: Path):
    (tmp_path / "a.tar").write_bytes(b"x" * 2000)
    assert "not a readable tar" in refused(tmp_path / "a.tar")
    assert "not a label" in refused(write_tar(tmp_path / "b.tar", 0, label="cat"))
    assert "out of range" in refused(write_tar(tmp_path / "c.tar", 0, label="-1"))
    assert "one class" in refused(write_tar(tmp_path / "d.tar", 0, label="0"))


@pytest.mark.parametrize("struct_", [True, False])
def test_parquet_as_on_the_hub_is_read_at_random(tmp_path: Path, struct_: bool):
    data = [png(image) for image in CIFAR]
    data[4] = b"broken"
    column = [{"bytes": each, "path": None} for each in data] if struct_ else data
    table = arrow.table({"img": column, "label": LABELS})
    names = json.dumps({"info": {"features": {"label": {"names": list("abcdefghij")}}}})
    table = table.replace_schema_metadata({"huggingface": names})
    parquet.write_table(table, tmp_path / "train-0.parquet", row_group_size=5)
    parquet.write_table(table.slice(0, 3), tmp_path / "test-0.parquet")
    source = open_source(tmp_path)
    assert (len(source), len(open_source(tmp_path, "test")), source.classes[1]) == (12, 3, "b")
    for index in (11, 0, 5):
        np.testing.assert_array_equal(source[index][0], CIFAR[index])
        assert source[index][1] == LABELS[index]
    with pytest.raises(ImageError, match="row 4: not a readable image"):
        source[4]


def test_parquet_of_other_columns_or_labels_is_one_line(tmp_path: Path):
    path = tmp_path / "a.parquet"
    parquet.write_table(arrow.table({"text": ["a"], "label": [0]}), path)
    assert "has columns text, label" in refused(path)
    parquet.write_table(arrow.table({"image": [png(CIFAR[0])] * 2, "label": [0, None]}), path)
    assert "use whole numbers from 0" in refused(path)
    path.write_bytes(b"PAR1 not")
    assert "not a readable Parquet file" in refused(path)


# ── shapes ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_drawn_shape_is_a_function_of_seed_split_and_index():
    one, again = Shapes(Size(20, 28)), Shapes(Size(20, 28))
    again[7]
    np.testing.assert_array_equal(one[5][0], again[5][0])
    assert one[5][0].shape == (20, 28, 3)
    assert [one[index][1] for index in range(5)] == [0, 1, 2, 3, 0]
    for other in (Shapes(Size(20, 28), seed=1), Shapes(Size(20, 28), split="test")):
        assert (one[5][0] != other[5][0]).any()


@pytest.mark.parametrize("label", range(4))
def test_a_shape_covers_its_area_at_any_resolution(label: int):
    """Exact areas, in units of the radius squared; an anti-aliased edge keeps them to a few per cent at 96 pixels."""
    from vitrail.data.shapes import _distance

    star = 5 * 0.45 * np.sin(np.pi / 5)  # ten triangles of sides 1 and 0.45
    area = {"circle": np.pi, "square": 1.7**2, "triangle": 0.75 * 3**0.5, "star": star}[SHAPES[label]]
    rows, columns = np.mgrid[:96, :128] + 0.5
    inside = _distance(SHAPES[label], rows - 50, columns - 61, 30.0)
    assert np.clip(inside + 0.5, 0, 1).sum() / 30**2 == pytest.approx(area, rel=0.02)
