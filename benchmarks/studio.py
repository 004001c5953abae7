"""The studio's speed in a real Chromium: a slider's move → the painted result, attention, and the first paint.

    .venv/bin/python benchmarks/studio.py

A move is timed inside the page: from the slider's input event, through the request and Python's answer, to the frame
after the figure's text changed; goal: 50 ms. The first paint is the browser's own, counted from the first byte of the
server's answer, with the image on the page and the figures filled counted beside it; goal: 1 s.

Attention is timed with a fetched model (`vitrail weights fetch dinov2-S/14`) on images that the server has not seen:
from the question to the answer with every head's map, and to the painted page with rollout, distances, entropies and
token colours. Between two questions, this process runs the same model on an image of the same size and nothing else:
the ratio of the two is what counts on a machine that others use, and the goal is 1.3.
"""

from __future__ import annotations

import io
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

import numpy as np
import torch
from PIL import Image
from playwright.sync_api import Browser, Page, expect, sync_playwright

from vitrail.checkpoint.sources.catalogue import fetched
from vitrail.server.session import Session

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync", "--no-first-run"]
MOVES = 60
LARGE, SIDE, IMAGES = "dinov2-S/14", 448, 9
MOVE = """
async ([name, figure, value]) => {
  const slider = document.getElementById(`${name}-slider`);
  const shown = [...document.querySelectorAll('.figure')]
    .find((each) => each.querySelector('dt').textContent === figure).querySelector('.value');
  const before = shown.textContent;
  const start = performance.now();
  const changed = new Promise((resolve) => {
    const watch = new MutationObserver(() => { watch.disconnect(); resolve(); });
    watch.observe(shown, { characterData: true, childList: true, subtree: true });
    setTimeout(resolve, 3000); // two values of a slider may have the same figure
  });
  slider.value = String(value);
  slider.dispatchEvent(new Event('input', { bubbles: true }));
  await changed;
  await new Promise(requestAnimationFrame);
  await new Promise((resolve) => setTimeout(resolve)); // after the frame was drawn
  return [performance.now() - start, before !== shown.textContent];
}
"""


def moves(page: Page, room: str, slider: str, figure: str, values: Sequence[float]) -> list[float]:
    page.goto(f"/?room={room}")
    page.locator(".figure").first.wait_for()
    page.wait_for_load_state("networkidle")
    found = []
    for value in values:
        took, changed = page.evaluate(MOVE, [slider, figure, value])
        if changed:
            found.append(took)
        page.wait_for_load_state("networkidle")
    assert len(found) > MOVES // 2
    return found[5:]  # the first ones warm both sides


ATTEND = """
async ([address]) => {
  const start = performance.now();
  performance.clearResourceTimings();
  history.pushState(null, '', address);
  dispatchEvent(new PopStateEvent('popstate'));
  const idle = () => document.documentElement.hasAttribute('data-idle');
  await new Promise(requestAnimationFrame);
  if (!idle()) await new Promise((resolve) => {
    const watch = new MutationObserver(() => { if (idle()) { watch.disconnect(); resolve(); } });
    watch.observe(document.documentElement, { attributes: true });
  });
  await new Promise(requestAnimationFrame);
  await new Promise((resolve) => setTimeout(resolve));
  const all = performance.now() - start;
  const answered = performance.getEntriesByType('resource').filter(({ name }) => name.includes('/api/attention/row'));
  return [answered.at(-1).responseEnd - start, all];
}
"""


def noise(seed: int) -> bytes:
    """An image that no cache has seen."""
    coarse = np.random.default_rng(seed).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(coarse).resize((SIDE, SIDE)).save(buffer, "PNG")
    return buffer.getvalue()


def plain_forward() -> Callable[[], None]:
    """The model's forward pass and nothing else, with as many threads as the studio's."""
    subject = Session([LARGE]).subject("cat", LARGE, SIDE)

    def run() -> None:
        with torch.inference_mode():
            subject.model(subject.image)

    return run


def attend(page: Page, forward: Callable[[], None]) -> list[tuple[float, float, float]]:
    """Milliseconds of a plain forward, to every head's map, and to the whole painted room, one after the other."""
    found = []
    page.goto(f"/?room=attention&weights={LARGE}&seen={SIDE}")
    expect(page.locator("html")).to_have_attribute("data-idle", "", timeout=120_000)
    for seed in range(IMAGES):
        name = page.request.post("/api/images", data=noise(seed)).json()["image"]
        start = time.perf_counter()
        forward()
        alone = 1e3 * (time.perf_counter() - start)
        maps, everything = page.evaluate(ATTEND, [f"/?room=attention&weights={LARGE}&seen={SIDE}&image={name}"])
        found.append((alone, maps, everything))
    return found[2:]  # the first ones warm both sides


def first_paint(page: Page) -> tuple[float, float]:
    """Milliseconds from the answer's first byte: to the first paint, and to image and figures being there."""
    page.goto("/?room=patch")
    # not wait_for_function: the page's policy forbids what it evaluates
    expect(page.locator(".figure .value").first).to_have_text("197")
    page.locator(".arch img").evaluate("(image) => image.decode()")
    paint, full, answered = page.evaluate(
        """[performance.getEntriesByName('first-contentful-paint')[0].startTime, performance.now(),
            performance.getEntriesByType('navigation')[0].responseStart]"""
    )
    return paint - answered, full - answered


def opened(browser: Browser, address: str) -> Page:
    return browser.new_page(base_url=address, viewport={"width": 1280, "height": 900})


def main() -> None:
    large = [LARGE] if LARGE in fetched() else []
    command = [sys.executable, "-m", "vitrail", "studio", "--no-open", *(f"--weights={name}" for name in large)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as studio, sync_playwright() as playwright:
        assert studio.stdout is not None
        address = studio.stdout.readline().split()[2]
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        sizes = [96 + 16 * (step % 40) for step in range(MOVES)]
        batches = [400 + 10 * (step % 60) for step in range(MOVES)]  # on a logarithmic scale from 0 to 1000
        thresholds = [0.3 + 0.02 * (step % 50) for step in range(MOVES)]
        for words, asked in (
            ("patch size: image side → tokens", ("patch", "height", "tokens", sizes)),
            ("memory: batch → peak", ("memory", "batch", "peak", batches)),
            ("tokens: threshold → patch tokens", ("tokens", "threshold", "patch tokens", thresholds)),
        ):
            page = opened(browser, address)
            taken = sorted(moves(page, *asked))
            page.close()
            print(
                f"{words:34} median {statistics.median(taken):5.1f} ms   95 % within {taken[-len(taken) // 20]:5.1f} ms"
            )
        paints = []
        for _ in range(7):
            page = opened(browser, address)
            paints.append(first_paint(page))
            page.close()
        paint, full = (statistics.median(each) for each in zip(*paints, strict=True))
        print(f"{'first paint after the answer':34} median {paint:5.0f} ms   image and figures {full:5.0f} ms")
        if large:
            page = opened(browser, address)
            forward, maps, everything = (
                statistics.median(each) for each in zip(*attend(page, plain_forward()), strict=True)
            )
            print(f"{f'{LARGE} at {SIDE} px: forward':34} median {forward:5.0f} ms")
            print(f"{'  every head':34} median {maps:5.0f} ms   {maps / forward:.2f} × the forward")
            print(f"{'  the whole room':34} median {everything:5.0f} ms   {everything / forward:.2f} × the forward")
        else:
            print(f"attention: skipped; vitrail weights fetch {LARGE} brings the model that it needs")
        browser.close()
        studio.terminate()


if __name__ == "__main__":
    main()
