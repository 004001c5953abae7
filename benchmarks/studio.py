"""The studio's speed in a real Chromium: a slider's move → the painted result, and the first paint.

    .venv/bin/python benchmarks/studio.py

A move is timed inside the page: from the slider's input event, through the request and Python's answer, to the frame
after the figure's text changed. The first paint is the browser's own, counted from the first byte of the server's
answer, with the image on the page and the figures filled counted beside it.
"""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
from pathlib import Path

from playwright.sync_api import Page, expect, sync_playwright

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync", "--no-first-run"]
MOVES = 60
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
  });
  slider.value = String(value);
  slider.dispatchEvent(new Event('input', { bubbles: true }));
  await changed;
  await new Promise(requestAnimationFrame);
  await new Promise((resolve) => setTimeout(resolve)); // after the frame was drawn
  return [performance.now() - start, before !== shown.textContent];
}
"""


def moves(page: Page, room: str, slider: str, figure: str, values: list[int]) -> list[float]:
    page.goto(f"/?room={room}")
    page.locator(".figure").first.wait_for()
    page.wait_for_load_state("networkidle")
    found = []
    for value in values:
        took, changed = page.evaluate(MOVE, [slider, figure, value])
        assert changed
        found.append(took)
        page.wait_for_load_state("networkidle")
    return found[5:]  # the first ones warm both sides


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


def main() -> None:
    command = [Path(sys.executable).with_name("vitrail"), "studio", "--no-open"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as studio, sync_playwright() as playwright:
        assert studio.stdout is not None
        address = studio.stdout.readline().split()[2]
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        sizes = [96 + 16 * (step % 40) for step in range(MOVES)]
        batches = [100 + 10 * (step % 60) for step in range(MOVES)]
        for words, asked in (
            ("patch size: image side → tokens", ("patch", "height", "tokens", sizes)),
            ("memory: batch → peak", ("memory", "batch", "peak", batches)),
        ):
            page = browser.new_page(base_url=address, viewport={"width": 1280, "height": 900})
            taken = sorted(moves(page, *asked))
            page.close()
            print(
                f"{words:34} median {statistics.median(taken):5.1f} ms   95 % within {taken[-len(taken) // 20]:5.1f} ms"
            )
        paints = []
        for _ in range(7):
            page = browser.new_page(base_url=address, viewport={"width": 1280, "height": 900})
            paints.append(first_paint(page))
            page.close()
        paint, full = (statistics.median(each) for each in zip(*paints, strict=True))
        print(f"{'first paint after the answer':34} median {paint:5.0f} ms   image and figures {full:5.0f} ms")
        browser.close()
        studio.terminate()


if __name__ == "__main__":
    main()
