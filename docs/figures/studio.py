"""Draws docs/figures/studio-ROOM-THEME.png: every room of the studio in a real Chromium, light and dark.

    .venv/bin/python docs/figures/studio.py [ROOM …] [--phone]

With --phone, pages as wide as a phone go to /tmp instead, to be looked at and not kept.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, expect, sync_playwright

HERE = Path(__file__).parent
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]


def settled(page: Page) -> None:
    """Nothing is being asked any more, and what came has been painted."""
    page.wait_for_load_state("networkidle", timeout=120_000)
    expect(page.locator("html")).to_have_attribute("data-idle", "", timeout=120_000)
    page.wait_for_timeout(400)


def shoot(address: str, rooms: list[str], *, phone: bool) -> None:
    size = {"width": 390, "height": 844} if phone else {"width": 1280, "height": 900}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        for theme in ("light", "dark"):
            page = browser.new_page(viewport=size, color_scheme=theme)  # type: ignore[arg-type]
            page.add_init_script("localStorage.setItem('vitrail-welcomed', 'yes')")  # not the banner of a first visit
            page.goto(address)
            known = page.evaluate("fetch('/api/controls').then((answer) => answer.json())")["rooms"]
            for room in rooms or known:
                page.goto(f"{address}/?room={room}")
                settled(page)
                kept = Path("/tmp") if phone else HERE
                path = kept / f"studio-{room}-{theme}{'-phone' if phone else ''}.png"
                page.screenshot(path=path, full_page=phone)
                few = Image.open(path).convert("RGB")
                if room not in ("dense", "folder"):  # 256 colours are enough for a page, and a third of the bytes
                    few = few.quantize(256, kmeans=2, dither=Image.Dither.NONE)
                few.save(path, optimize=True)
                print(path)
        browser.close()


def main() -> None:
    words = [word for word in sys.argv[1:] if word != "--phone"]
    vitrail = Path(sys.executable).with_name("vitrail")
    server = subprocess.Popen([vitrail, "studio", "--no-open", "--port", "0"], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        address = next(found[0] for line in server.stdout if (found := re.findall(r"http://[\d.:]+", line)))
        shoot(address.rstrip("/"), words, phone="--phone" in sys.argv)
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    main()
