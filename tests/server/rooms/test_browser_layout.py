"""The page on small screens, in a real browser: nothing is cut, nothing is out of reach, what explains is there."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from browser import opened, settled
from client import client
from playwright.sync_api import Page, expect

ROOMS = list(client().get("/api/controls").json()["rooms"])
SIZES = {"laptop": (1024, 768), "phone": (390, 844)}

DRIVER = """() => {
  const shown = (element) => element.getClientRects().length > 0 && getComputedStyle(element).visibility !== 'hidden';
  const nameOf = (element) => `${element.tagName} ${element.textContent.trim().slice(0, 40)}`;
  const scrolls = (element) => ['auto', 'scroll'].includes(getComputedStyle(element).overflowX);
  window.cut = () => {
    const found = [];
    for (const panel of document.querySelectorAll('.panel')) {
      const right = panel.getBoundingClientRect().right;
      for (const element of panel.querySelectorAll('*')) {
        if (!shown(element) || element.closest('.hidden, [popover], .menu ul')) continue;
        const scroller = element.parentElement.closest('.scroll');
        const drawing = element instanceof SVGTextElement ? element.ownerSVGElement : null;
        const box = element.getBoundingClientRect();
        const around = drawing?.getBoundingClientRect();
        const hidden = getComputedStyle(element).overflowX === 'hidden';
        if (
          drawing ? box.left < around.left - 2 || box.right > around.right + 2
          : (!(scroller && scrolls(scroller)) && box.right > right + 1)
            || (hidden && element.scrollWidth > element.clientWidth + 1)
        ) found.push(`${panel.ariaLabel}: ${nameOf(element)}`);
      }
    }
    return found;
  };
  window.unreachable = (which) =>
    [...document.querySelectorAll(which)].filter((control) => {
      control.scrollIntoView({ block: 'center', inline: 'nearest' });
      const box = (control.closest('label') ?? control).getBoundingClientRect();
      const top = document.elementFromPoint(box.left + box.width / 2, box.top + box.height / 2);
      return !top || !(control.contains(top) || control.closest('label')?.contains(top));
    }).map((control) => control.id || control.ariaLabel || control.outerHTML);
  /* pixels of the first panel's content above the dock of controls, and how many there could be */
  window.firstSight = () => {
    const body = document.querySelector('.views .panel .body').getBoundingClientRect();
    return [document.querySelector('.controls').getBoundingClientRect().top - Math.max(0, body.top), body.height];
  };
  window.go = (place) => {
    history.pushState(null, '', place);
    dispatchEvent(new PopStateEvent('popstate'));
    scrollTo(0, 0);
  };
}"""


@pytest.fixture(scope="module", params=SIZES)
def small(request: pytest.FixtureRequest, opener: Page, address: str) -> Iterator[Page]:
    width, height = SIZES[request.param]
    with opened(opener, address) as page:
        page.set_viewport_size({"width": width, "height": height})
        page.goto("/")
        expect(page.locator("main h1")).to_be_visible()
        page.evaluate(DRIVER)
        yield page


@pytest.mark.parametrize("room", ROOMS)
def test_nothing_is_cut_or_out_of_reach_on_a_small_screen(small: Page, room: str):
    small.evaluate("place => go(place)", f"?room={room}")
    settled(small)
    assert small.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert small.evaluate("cut()") == []
    assert small.evaluate("unreachable('.room input, .room select, .tools button')") == []
    small.evaluate("scrollTo(0, 0)")
    menu = small.get_by_role("button", name="Rooms:")
    if menu.is_visible():  # on a phone, one button names the room and opens the others
        expect(menu).to_contain_text(small.locator("main h1").inner_text())
        menu.click()
    current = small.locator("nav [aria-current]").bounding_box()
    assert current
    assert 0 <= current["x"] <= current["x"] + current["width"] <= small.viewport_size["width"]  # type: ignore[index]
    assert small.evaluate("unreachable('nav a')") == []
    if menu.is_visible():
        menu.click()
        expect(small.locator("nav[aria-label=Rooms]")).to_be_hidden()


LEAST_SEEN = 190
"""Pixels of the content of a room's first panel."""


@pytest.mark.parametrize("room", ROOMS)
def test_the_result_of_a_room_is_on_the_first_screen_of_a_phone(page: Page, room: str):
    """With the banner of a first visit, which takes the most room."""
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(f"/?room={room}")
    expect(page.get_by_role("region", name="Welcome")).to_be_visible()
    settled(page)
    page.evaluate(DRIVER)
    assert page.evaluate("scrollY") == 0
    seen, whole = page.evaluate("firstSight()")
    assert whole > 40
    assert seen >= min(LEAST_SEEN, whole)


def test_a_room_is_chosen_from_the_list_on_a_phone(page: Page):
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto("/?room=patch")
    page.get_by_role("button", name="Rooms:").click()
    page.get_by_role("link", name="Memory").click()
    expect(page.locator("main h1")).to_have_text("Memory")
    expect(page.get_by_role("link", name="Models")).to_be_hidden()
    expect(page.get_by_role("button", name="Rooms:")).to_contain_text("Memory")
