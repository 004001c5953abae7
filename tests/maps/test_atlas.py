"""Maps of folders: points, neighbours and doubts by closed cases and by scikit-learn, and folders with faults."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression

from embedding import drawn, photos, png, save_weights
from vitrail import VitrailError, atlas, embed
from vitrail.data.shapes import SHAPES, Shapes
from vitrail.geometry import Size
from vitrail.maps.colours import class_colours
from vitrail.maps.flatten import flatten, neighbours_kept
from vitrail.maps.judge import judge
from vitrail.maps.picture import doubt_sheet, in_cells, map_picture
from vitrail.maps.source import kept_vectors
from vitrail.vectors.cosine import unit


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VITRAIL_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_weights(tmp_path_factory.mktemp("weights") / "w.safetensors")


@pytest.fixture(scope="module")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four classes with seven drawn shapes each, and a star among the circles."""
    from PIL import Image

    folder = tmp_path_factory.mktemp("shapes")
    source = Shapes(Size(24, 32), count=29)
    for index in range(28):
        pixels, label = source[index]
        path = folder / SHAPES[label] / f"{index:02}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(pixels).save(path)
    Image.fromarray(source[3][0]).save(folder / "circle" / "wrong.png")
    return folder


def clouds(count: int = 60, width: int = 7, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Three classes around different directions, as unit vectors."""
    random = np.random.default_rng(seed)
    labels = np.arange(count) % 3
    return unit((4 * np.eye(3, width)[labels] + random.normal(size=(count, width))).astype(np.float32)), labels


def test_points_and_variance_are_those_of_scikit_learns_pca():
    vectors, _ = clouds()
    found = flatten(vectors)
    peer = PCA(2).fit(vectors.astype(np.float64))
    expected = peer.transform(vectors.astype(np.float64))
    signs = np.sign((expected * found.points).sum(axis=0))
    np.testing.assert_allclose(found.points, expected * signs, atol=1e-5)  # float32
    assert found.variance == pytest.approx(peer.explained_variance_ratio_.sum(), abs=1e-6)
    assert found.point_of(vectors[5]) == pytest.approx(tuple(found.points[5]), abs=1e-5)


def test_tsne_is_the_same_for_the_same_seed_and_keeps_more_neighbours_than_pca():
    vectors, _ = clouds(90, 12)
    cosines = vectors @ vectors.T
    np.fill_diagonal(cosines, -np.inf)
    near = np.argsort(-cosines, axis=1)[:, :10]
    first, again = (flatten(vectors, "tsne", seed=3).points for _ in range(2))
    np.testing.assert_array_equal(first, again)
    kept, flat = neighbours_kept(first, near), neighbours_kept(flatten(vectors).points, near)
    assert kept is not None
    assert flat is not None
    assert kept.share > flat.share > flat.chance


def test_a_plane_keeps_all_neighbours_of_itself_and_random_places_the_share_by_chance():
    random = np.random.default_rng(0)
    points = random.normal(size=(400, 2)).astype(np.float32)
    apart = np.square(points[:, None] - points[None]).sum(axis=-1)
    np.fill_diagonal(apart, np.inf)
    near = np.argsort(apart, axis=1)[:, :10]
    itself, shuffled = neighbours_kept(points, near), neighbours_kept(random.permutation(points), near)
    assert itself is not None
    assert shuffled is not None
    assert itself.share == 1
    assert shuffled.chance == 10 / 399
    assert shuffled.share == pytest.approx(shuffled.chance, abs=0.01)


def test_a_probe_is_as_right_as_scikit_learns_on_images_that_it_has_not_seen():
    vectors, labels = clouds(150)
    found = judge(vectors, labels, ("a", "b", "c"))
    held = np.arange(150) % 5 == 0
    peer = LogisticRegression().fit(vectors[~held], labels[~held]).score(vectors[held], labels[held])
    assert found.accuracy == pytest.approx(peer, abs=0.1)
    assert found.chance == pytest.approx(1 / 3)
    assert found.images == 150


def test_an_image_in_the_wrong_class_is_doubted_first():
    vectors, labels = clouds()
    labels[7] = (labels[7] + 1) % 3
    found = judge(vectors, labels, ("a", "b", "c"))
    assert found.doubted()[0] == 7
    assert found.guesses[7] == 7 % 3
    assert found.probabilities[7] < 0.1


def test_labels_that_vectors_do_not_explain_are_named_right_by_chance_even_with_copies():
    """A probe that had seen a copy of an image would name it right: copies are in one fold."""
    vectors = np.repeat(np.random.default_rng(1).normal(size=(120, 160)).astype(np.float32), 3, axis=0)
    labels = np.repeat(np.arange(120) % 2, 3)
    copies = [np.arange(3) + 3 * each for each in range(120)]
    assert judge(vectors, labels, ("a", "b"), copies).accuracy < 0.65
    assert judge(vectors, labels, ("a", "b")).accuracy > 0.9  # what the copies would give away


def test_a_class_with_one_image_is_left_out_by_name():
    vectors, labels = clouds()
    labels[0] = 3
    found = judge(vectors, labels, ("a", "b", "c", "lonely"))
    assert found.left_out == ("lonely",)
    assert found.images == 59
    assert np.isnan(found.probabilities[0])
    assert found.guesses[0] == -1


def test_every_cell_shows_the_image_nearest_to_its_centre():
    places = np.random.default_rng(0).uniform(0, 100, (300, 2)).astype(np.float32)
    chosen = in_cells(places, 10)
    assert len(set(chosen.values())) == len(chosen) == len({tuple(each) for each in (places // 10).tolist()})
    for place, centre in chosen.items():
        inside = np.abs(places - centre).max(axis=1) <= 5
        apart = np.square(places - centre).sum(axis=1)
        assert apart[place] == apart[inside].min()


@pytest.mark.parametrize("count", [1, 9, 10, 60])
def test_every_class_has_a_colour_of_its_own(count: int):
    assert len(set(class_colours(count))) == count


def test_a_folder_with_classes_is_mapped_judged_and_drawn(shapes: Path, weights: Path):
    found = atlas(shapes, weights, workers=1, threshold=0.9999)
    table = embed(shapes, weights, workers=0)
    assert found.ids == tuple(table.column("id").to_pylist())
    stored = np.stack(table.column("vector").to_numpy())
    np.testing.assert_allclose(found.vectors, unit(stored), atol=1e-5)
    assert found.classes == tuple(sorted(SHAPES))
    assert [found.classes[label] for label in found.labels] == [Path(name).parts[0] for name in found.ids]
    assert [[each.id for each in group] for group in found.duplicates.groups] == [["circle/wrong.png", "star/03.png"]]
    assert found.near.places[found.ids.index("star/03.png"), 0] == found.ids.index("circle/wrong.png")
    assert len(found.doubts) == 29
    assert found.search(shapes / "star/03.png", top=2).left_out == ["circle/wrong.png", "star/03.png"]
    assert map_picture(found, "Shapes").width == 2400
    assert doubt_sheet(found, 5).height > 300


def test_the_second_map_of_a_folder_runs_no_model(shapes: Path, weights: Path, monkeypatch):
    first = atlas(shapes, weights, workers=1)
    monkeypatch.setattr("vitrail.vectors.job.embed.LocalCrew.give", None)  # no shard is given to a worker
    second = atlas(shapes, weights, method="tsne", workers=1)
    assert second.ids == first.ids
    np.testing.assert_array_equal(second.vectors, first.vectors)
    again = atlas(kept_vectors(shapes, weights))  # what was kept is a folder of vectors
    np.testing.assert_array_equal(again.points, first.points)


def test_a_folder_is_followed_as_it_changes_and_its_faults_are_named(tmp_path: Path, weights: Path):
    folder = photos(tmp_path / "photos", 4)
    (folder / "broken.png").write_bytes(png(9)[:40])
    found = atlas(folder, weights, workers=1)
    assert found.ids == tuple(f"{each:05}.png" for each in range(4))
    assert [each.id for each in found.failed] == ["broken.png"]
    assert found.judged is None
    assert "every image is in one of two or more subfolders" in found.unjudged
    (folder / "00001.png").unlink()
    drew = map_picture(found, "A file is gone")  # it has no thumbnail
    assert drew.size[0] == 2400
    (folder / "broken.png").write_bytes(png(9))
    found = atlas(folder, weights, workers=1)
    assert found.ids == ("00000.png", "00002.png", "00003.png", "broken.png")


def test_a_class_per_image_leaves_no_task_for_a_probe(tmp_path: Path, weights: Path):
    for name in ("one", "two"):
        photos(tmp_path / "photos" / name, 1)
    found = atlas(tmp_path / "photos", weights, workers=1)
    assert found.judged is None
    assert "fewer than two classes have two different images" in found.unjudged
    assert found.kept is None


def test_a_table_has_labels_of_its_own(weights: Path):
    table = embed([drawn(seed) for seed in range(6)], weights, workers=0)
    found = atlas(table, labels=["a", "b"] * 3)
    assert found.classes == ("a", "b")
    with pytest.raises(VitrailError, match="2 labels are given for 6 images"):
        atlas(table, labels=["a", "b"])


def test_too_few_images_are_refused_in_one_line(tmp_path: Path, weights: Path):
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(VitrailError, match="has no images"):
        atlas(empty, weights)
    with pytest.raises(VitrailError, match="is not a folder"):
        atlas(tmp_path / "nowhere", weights)
    with pytest.raises(VitrailError, match="one image that can be read, and a map needs two"):
        atlas(photos(tmp_path / "one", 1), weights, workers=1)
    (empty / "a.png").write_bytes(b"no image")
    with pytest.raises(VitrailError, match="none of the 1 images"):
        atlas(empty, weights, workers=1)
    table = embed([drawn(seed) for seed in range(3)], weights, workers=0)
    with pytest.raises(VitrailError, match="t-SNE needs 5 images, and there are 3; use the method pca"):
        atlas(table, method="tsne")
