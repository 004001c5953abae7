"""What an export does before a browser opens it: code without torch, graphs like torch, files or a line."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from client import client
from loaded import OWN, SMALL, studio_with
from PIL import Image

from command import call
from vitrail.errors import VitrailError
from vitrail.geometry import Size
from vitrail.images.synthesize import synthesize_image
from vitrail.look.pca import eigendecomposition
from vitrail.parts import Adaptive, Rotary
from vitrail.presets import preset
from vitrail.server.session import Session
from vitrail.server.site import packages, write
from vitrail.server.site.answers import why_without
from vitrail.server.site.colours import leading_by_iteration
from vitrail.server.site.graph import trace
from vitrail.server.site.resize import resize_graph
from vitrail.server.site.write import MARK, export_site

ALONE = """
import asyncio, json, sys
sys.modules |= dict.fromkeys(["numpy", "PIL", "torch", "matplotlib", "rich", "cyclopts", "uvicorn"])
from vitrail.server.site.browser import start

async def answers():
    backend = start(json.dumps({"models": {}, "images": {"cat": [260, 390]}}))
    return {address: json.loads((await backend.answer(address))[2]) for address in sys.argv[1:]}

print(json.dumps(asyncio.run(answers())))
"""
"""What a page's worker does, in a Python that has as little as Pyodide has."""


def test_the_planning_rooms_need_neither_numpy_nor_pillow_nor_torch():
    paths = ["/api/patch?height=240", "/api/memory/fit?batch=3", "/api/models", "/api/decide?data_size=900"]
    paths += [
        "/api/decide/ranking",
        "/api/tokens?stride=5",
        "/api/projection",
        "/api/images/cat/middle?height=60&width=70",
    ]
    done = subprocess.run([sys.executable, "-c", ALONE, *paths], capture_output=True, text=True, check=True)
    studio = client()
    assert json.loads(done.stdout) == {path: studio.get(path).json() for path in paths}


def test_a_graph_gives_every_number_of_another_image(tmp_path: Path):
    config = SMALL.but(position=Rotary(), classes=5)
    session, _ = studio_with(config, tmp_path)
    assert why_without(OWN, session) == ""
    subjects = {"seen": session.subject("cat", OWN)}
    other = session.subject("window", OWN).pixels
    graph = trace(subjects, {"seen": other}, session.checkpoint(OWN).preprocessing)
    run = onnxruntime.InferenceSession(graph.onnx).run(None, {"seen": other})
    session.close()
    assert graph.cosine > 0.9999
    assert graph.inputs == {"seen": config.image}
    for found, (name, expected) in zip(run, graph.outputs.items(), strict=True):
        if name.startswith("norms"):  # equal but for rounding after a norm layer; their range is compared
            continue
        atol, rtol = (1.0, 0.0) if expected.dtype == torch.uint8 else (1e-4, 1e-3)
        torch.testing.assert_close(torch.tensor(np.asarray(found)), expected, atol=atol, rtol=rtol, msg=name)


def test_leading_components_by_iteration_are_those_of_an_eigendecomposition():
    """Tokens of three layers at once; spectra that fall as trained features' do, one of them of rank two."""
    random = torch.Generator().manual_seed(2)
    tokens = torch.randn(3, 35, 24, generator=random, dtype=torch.float64) * 0.8 ** torch.arange(24)
    tokens[2] = tokens[2, :, :2] @ torch.randn(2, 24, generator=random, dtype=torch.float64)
    matrices = tokens.mT @ tokens
    values, vectors = leading_by_iteration(matrices)
    for matrix, found, chosen in zip(matrices, values, vectors, strict=True):
        expected, columns = eigendecomposition(matrix)
        torch.testing.assert_close(found, expected, atol=1e-9 * float(expected[0]), rtol=1e-6)
        real = expected > 1e-9 * expected[0]
        torch.testing.assert_close(
            (chosen * columns).sum(dim=0).abs()[real], torch.ones(3).double()[real], rtol=1e-5, atol=0
        )


@pytest.mark.parametrize("seed", range(20))
def test_components_of_tokens_on_a_line_are_numbers_whatever_the_rounding(seed: int):
    """All that is left after the first component is rounding, which differs from processor to processor."""
    random = torch.Generator().manual_seed(seed)
    tokens = torch.randn(1, 35, 1, generator=random, dtype=torch.float64) * torch.randn(24, generator=random).double()
    values, vectors = leading_by_iteration(tokens.mT @ tokens)
    assert vectors.isfinite().all()
    torch.testing.assert_close(values[0, 0], tokens.square().sum())
    assert (values[0, 1:] < 1e-12 * values[0, 0]).all()


def test_a_constant_from_the_traced_image_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """A value that tracing froze would be wrong for every other picture."""
    from vitrail.server.site import graph

    honest = graph._attention
    monkeypatch.setattr(
        graph,
        "_attention",
        lambda *given: {**honest(*given), "entropy0": torch.tensor(honest(*given)["entropy0"].tolist())},
    )
    session, _ = studio_with(SMALL, tmp_path)
    other = {"seen": session.subject("window", OWN).pixels}
    with pytest.raises(VitrailError, match="entropy0 off by"):
        trace({"seen": session.subject("cat", OWN)}, other, session.checkpoint(OWN).preprocessing)
    session.close()


def test_models_that_a_page_cannot_run_are_told_apart(tmp_path: Path):
    adaptive = SMALL.but(embedding=Adaptive(patches=(Size(5, 7), Size(10, 14))), image=Size(40, 56))
    session, _ = studio_with(adaptive, tmp_path)
    assert "depend on the image" in why_without(OWN, session)
    session.close()
    monkey = Session()
    monkey._configs["default"] = preset("swin-T")
    assert "different grids" in why_without("default", monkey)
    monkey.close()


@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear"])
@pytest.mark.parametrize(
    ("size", "most", "mean"),
    [((85, 64), 1, 0.02), ((301, 226), 1, 0.02), ((64, 85), 8, 0.5)],
    ids=["smaller", "larger", "squashed"],
)
def test_a_page_resizes_pictures_as_pillow_does(interpolation: str, size: tuple[int, int], most: int, mean: float):
    """Where the aspect ratio is kept, up to a rounding; where it is not, the two resize the axes in another order."""
    pixels = synthesize_image(5)[:200, :150]
    session = onnxruntime.InferenceSession(resize_graph(interpolation))  # type: ignore[arg-type]
    given = {"pixels": np.ascontiguousarray(pixels.transpose(2, 0, 1))[None], "sizes": np.array([1, 3, *size])}
    ours = np.asarray(session.run(None, given)[0])[0].transpose(1, 2, 0).astype(int)
    theirs = np.asarray(Image.fromarray(pixels).resize((size[1], size[0]), Image.Resampling[interpolation.upper()]))
    assert np.abs(ours - theirs).max() <= most
    assert np.abs(ours - theirs).mean() <= mean


# ── faults ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_folder_with_other_files_is_refused_and_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "thesis.tex").write_text("all of it")
    assert call("studio", "--export", str(tmp_path)) == 2
    assert "is a folder with other files" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
    assert call("studio", "--export", str(tmp_path / "thesis.tex")) == 2
    assert "is a file; name a folder" in capsys.readouterr().err


def test_weights_that_cannot_be_read_are_told_in_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert call("studio", "--export", str(tmp_path / "site"), "--weights", str(tmp_path / "none.safetensors")) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not any(tmp_path.iterdir())


def test_an_earlier_export_is_replaced_whole_or_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    site = tmp_path / "site"
    site.mkdir()
    (site / MARK).write_text("an earlier export")
    (site / "old.js").write_text("")
    monkeypatch.setattr(write, "fetched_files", lambda tell: {})

    def breaks(folder: Path, *_: object) -> list[object]:
        (folder / "half.js").write_text("")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(write, "_write", breaks)
    with pytest.raises(VitrailError, match=r"No space left on device.*free some space"):
        export_site(site)
    assert sorted(path.name for path in site.iterdir()) == ["old.js", MARK]

    def works(folder: Path, *_: object) -> list[object]:
        (folder / MARK).write_text("new")
        return []

    monkeypatch.setattr(write, "_write", works)
    done = export_site(site)
    assert (done.files, done.bytes) == (1, 3)
    assert [path.name for path in site.iterdir()] == [MARK]
    assert [path.name for path in tmp_path.iterdir()] == ["site"]


def test_a_machine_without_npm_is_told_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(VitrailError, match="npm is not installed; install it, or export on a machine"):
        packages.fetched_files(lambda _: None)


def test_a_file_that_is_not_the_pinned_one_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path))
    small = replace(packages.ONNX_RUNTIME, files={"ort.wasm.bundle.min.mjs": "0" * 64})
    monkeypatch.setattr(packages, "PACKAGES", (small,))
    folder = tmp_path / "onnxruntime-web-1.30.0"
    folder.mkdir()
    (folder / "ort.wasm.bundle.min.mjs").write_text("something else")
    with pytest.raises(VitrailError, match="SHA-256 differs"):
        packages.fetched_files(lambda _: None)
