"""The exported site in Chromium, with the network off: the planner's numbers are Python's, the models' are torch's."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from browser import settled, violations
from client import client
from frames import floats, read_frame
from PIL import Image
from playwright.sync_api import Page, expect

from vitrail.images.synthesize import synthesize_image
from vitrail.nn.vit import ViT
from vitrail.server.session import DEFAULT, Session

PLANNED = [
    "patch?height=250&width=384&patch_height=14&patch_width=16&remainder=crop",
    "patch/neighbours?model=L%2F16&batch=7",
    "memory?model=deit-S%2F16&batch=3&precision=fp32&attention=eager",
    "memory/fit?model=G%2F14&batch=64&card=24GiB",
    "memory/curve?shard=fsdp&devices=8",
    "models?family=all&same_side=256",
    "models/batch?family=dino&card=a100-80gb&train=false",
    "decide?application=medical&data_size=1200&input_side=512",
    "decide/ranking?application=satellite&object_side=12",
    "tokens?stride=4&height=320",
    "config?model=B%2F16&height=480",
    "memory/command?batch=5",
    "patch?height=3",
]
"""Deep links of the planning rooms, none of which the export recorded; the last is a mistake."""


def asked(page: Page, path: str) -> bytes:
    """What the page's own code answers."""
    text = page.evaluate(
        """async path => {
            const bytes = new Uint8Array(await (await vitrail.fetch(`./api/${path}`)).arrayBuffer());
            let text = '';
            for (let i = 0; i < bytes.length; i += 8192) text += String.fromCharCode(...bytes.subarray(i, i + 8192));
            return btoa(text);
        }""",
        path,
    )
    return base64.b64decode(text)


def test_the_planner_in_a_page_on_a_disk_gives_the_servers_answers(on_disk: Page):
    studio = client()
    for path in PLANNED:
        assert json.loads(asked(on_disk, path)) == studio.get(f"/api/{path}").json(), path


def test_what_is_recorded_is_what_the_page_computes(on_disk: Page):
    for path in ("patch", "memory/fit", "models", "decide/ranking", "images/cat/middle?height=224&width=224"):
        live = f"{path}{'&' if '?' in path else '?'}"  # the same question, at an address that was not recorded
        assert json.loads(asked(on_disk, path)) == json.loads(asked(on_disk, live)), path


@pytest.fixture(scope="module")
def picture() -> bytes:
    """A picture that is not square, and not bundled."""
    stream = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(synthesize_image(3)[:, 20:])).save(stream, "PNG")
    return stream.getvalue()


def dropped(page: Page, picture: bytes) -> str:
    """Give the page a picture as a visitor does; return its name there."""
    page.locator("input[type=file]").set_input_files({"name": "own.png", "mimeType": "image/png", "buffer": picture})
    expect(page.get_by_text("Another…")).to_be_visible()
    return page.evaluate("new URLSearchParams(location.search).get('image')")


def test_a_model_on_the_visitors_picture_gives_what_torch_gives(on_a_host: Page, picture: bytes):
    page = on_a_host
    name = dropped(page, picture)
    session = Session()
    own = session.add_image(picture)
    subject, _ = session.recording(own, DEFAULT, 64)
    pixels = read_frame(asked(page, f"tokens/sequence?image={name}"))[1]["pixels"]
    difference = np.abs(pixels.astype(int) - subject.pixels)
    assert difference.max() <= 2  # ONNX Runtime resizes as Pillow does, up to a rounding
    assert (difference == 0).mean() > 0.99
    # from here on, torch sees the page's own pixels
    image = io.BytesIO()
    Image.fromarray(pixels).save(image, "PNG")
    _agrees(page, f"image={name}", session, session.add_image(image.getvalue()))
    session.close()


def _agrees(page: Page, query: str, session: Session, image: str) -> None:
    subject, recording = session.recording(image, DEFAULT, 64)
    model = subject.model
    assert isinstance(model, ViT)
    vector = torch.tensor(json.loads(asked(page, f"site/vector?{query}"))["vector"])
    cosine = torch.nn.functional.cosine_similarity(vector, model.pooled(*recording.features)[0], dim=0).item()
    assert cosine >= 0.9999
    facts, arrays = read_frame(asked(page, f"attention/maps?{query}"))
    assert facts["whole"]
    assert facts["grids"] == [[16, 16]] * 6
    for layer, inputs in enumerate(recording.attention):
        weights = inputs.rows().weights[0]
        shown = arrays[f"heads{layer}"] / 255 * floats(arrays[f"exact{layer}"])[..., :1]
        torch.testing.assert_close(torch.tensor(shown), weights[:, :, 1:], atol=0.005, rtol=0.02, check_dtype=False)
    answer = json.loads(asked(page, f"attention?{query}"))
    seen = answer["guesses"][-1]
    likely = recording.output[0].softmax(dim=0).sort(descending=True)
    assert seen["probabilities"] == pytest.approx(likely.values.tolist(), abs=1e-5)
    labels = session.checkpoint(DEFAULT).labels
    assert seen["names"][0] == labels[int(likely.indices[0])]


def test_rooms_of_a_site_show_what_the_studio_shows(on_a_host: Page):
    """The bundled photograph in both: every number of the answers, and every byte but for roundings."""
    page, studio = on_a_host, client()
    ours, theirs = json.loads(asked(page, "attention?image=cat")), studio.get("/api/attention?image=cat").json()
    assert _rounded(ours) == _rounded(theirs)
    for path in (
        "attention/tokens?image=cat&layer=2",
        "attention/tokens?image=cat",
        "attention/row?image=cat&token=40",
        "attention/rolled?image=cat&token=40",
        "tokens/sequence?image=cat",
    ):
        ours, theirs = read_frame(asked(page, path)), read_frame(studio.get(f"/api/{path}").content)
        assert _rounded({**ours[0], "subject": ""}) == _rounded({**theirs[0], "subject": ""})
        for name, array in theirs[1].items():
            if name.startswith(("exact", "contrast")):
                np.testing.assert_allclose(floats(ours[1][name]), floats(array), rtol=0.01, atol=1e-4)
            else:
                assert np.abs(ours[1][name].astype(int) - array).max() <= 2, (path, name)
    ours = json.loads(asked(page, "tokens/one?image=cat&token=0"))
    assert _rounded(ours) == _rounded(studio.get("/api/tokens/one?image=cat&token=0").json())


def _rounded(value: Any) -> Any:
    """Floats to three digits: two runtimes add in different orders."""
    if isinstance(value, dict):
        return {name: _rounded(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_rounded(each) for each in value]
    return pytest.approx(value, rel=1e-2, abs=1e-3) if isinstance(value, float) else value


def test_a_view_that_a_site_does_not_have_names_the_command(on_a_host: Page):
    page = on_a_host
    page.get_by_role("link", name="Walk through").click()
    expect(page.get_by_text("vitrail studio", exact=False).last).to_be_visible()
    assert violations(page) == []
    page.get_by_role("link", name="Projection").click()
    settled(page)
    expect(page.locator("[data-panel] .elsewhere").first).to_contain_text("run vitrail studio")
    page.get_by_role("link", name="Attention").click()
    settled(page)
    expect(page.get_by_text("It says")).to_be_visible()
    assert violations(page) == []


def test_files_that_a_site_cannot_take_are_refused_in_a_line(on_disk: Page, tmp_path: Path):
    page = on_disk
    page.locator("input[type=file]").set_input_files({"name": "a.png", "mimeType": "image/png", "buffer": b"no image"})
    expect(page.get_by_role("alert")).to_contain_text("not an image that this browser can read")
    page.locator("input[type=file]").set_input_files(
        {"name": "own.safetensors", "mimeType": "application/octet-stream", "buffer": b"12345678"}
    )
    expect(page.get_by_role("alert")).to_contain_text("vitrail studio --weights")
    page.goto(page.url.replace("room=patch", "room=attention&image=gone"))
    expect(page.get_by_text("The link's image is no longer stored")).to_be_visible()
    settled(page)


def test_nothing_can_leave_a_site(on_disk: Page):
    """The policy, and not good will: even a script of the page cannot ask anyone."""
    tried = """async () => {
        try { await fetch('http://127.0.0.1:9/'); return 'asked'; } catch (error) { return 'refused'; }
    }"""
    policy = on_disk.locator("meta[http-equiv=Content-Security-Policy]").get_attribute("content")
    assert policy is not None
    assert "connect-src 'none'" in policy
    on_disk.evaluate(
        "document.addEventListener('securitypolicyviolation', e => { window.broken = e.effectiveDirective })"
    )
    assert on_disk.evaluate(tried) == "refused"
    assert on_disk.evaluate("window.broken") == "connect-src"
