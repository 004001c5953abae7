"""Cause and effect in a real browser: what a control changes is on the screen, at a desk and on a phone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from browser import opened, settled
from client import client
from playwright.sync_api import Page, expect

ROOMS = list(client().get("/api/controls").json()["rooms"])
STATES = {
    "memory&shard=fsdp&precision=fp32": ["devices", "reshard_after_forward", "param_dtype"],
    "memory&shard=ddp": ["gradient_as_bucket_view"],
    "transfer&transfer_table=known&table_view=channel": ["old_rows", "old_columns", "table_index"],
    "patch&width=320&patch_width=8": ["width", "patch_width"],
}
"""Places with controls that their rooms do not show at first."""
SIZES = {"desk": (1440, 900), "phone": (390, 844)}

DRIVER = """() => {
  const settle = async () => {
    for (let calm = 0; calm < 6; ) {
      await new Promise((done) => setTimeout(done, 10));
      calm = document.querySelector('html[data-idle] main:not([data-watching])') ? calm + 1 : 0;
    }
  };
  /* what is drawn between the top of the window and its bottom, or the dock of controls */
  const seen = () => {
    const dock = document.querySelector('.controls');
    const bottom = getComputedStyle(dock).position === 'fixed' ? dock.getBoundingClientRect().top : innerHeight;
    const parts = [];
    for (const element of document.querySelectorAll('.views .body *, .views .error')) {
      const box = element.getBoundingClientRect();
      if (!box.height || box.bottom < 4 || box.top > bottom - 4) continue;
      if (element instanceof HTMLCanvasElement) parts.push(element.toDataURL());
      else if (element instanceof SVGElement) parts.push([...element.attributes].map(({ value }) => value).join());
      for (const node of element.childNodes) if (node.nodeType === 3) parts.push(node.data);
    }
    return parts.join('|');
  };
  const nameOf = ({ id, name, ariaLabel, parentElement }) => id || name || ariaLabel || parentElement.innerText;
  /* one control per name: of radio buttons, the first that is not chosen */
  const found = (only) => {
    const controls = [...document.querySelectorAll('.room input, .room select')].filter((control) =>
      !['number', 'file'].includes(control.type) && control.ariaLabel !== 'Weights'
      && !(control.type === 'radio' && control.checked)
      && (!only.length || only.includes(control.id.replace('-slider', ''))));
    return [...new Map(controls.reverse().map((control) => [nameOf(control), control])).values()].reverse();
  };
  const move = (control) => {
    if (control.type === 'range') {
      const [low, high, at] = [control.min, control.max, control.value].map(Number);
      const step = Math.max(Number(control.step), 0.27 * (high - low));
      control.value = at + step <= high ? at + step : at - step;
    } else if (control.type === 'checkbox' || control.type === 'radio') control.checked = !control.checked;
    else control.selectedIndex = control.selectedIndex ? 0 : control.options.length - 1;
    for (const name of ['input', 'change']) control.dispatchEvent(new Event(name, { bubbles: true }));
  };
  const go = (search) => {
    history.pushState(null, '', search);
    dispatchEvent(new PopStateEvent('popstate'));
  };
  /* the controls of a place, used one after the other from the top of the page, that change nothing in sight */
  window.unseen = async (place, only) => {
    go(place);
    await settle();
    const dead = [];
    const count = found(only).length;
    for (let index = 0; index < count; index++) {
      const control = found(only)[index];
      if (!control) continue;
      if (control.closest('.controls')) scrollTo(0, 0);
      else control.scrollIntoView({ block: 'start' });
      const name = nameOf(control);
      move(control);
      await settle();
      const after = seen();
      go(place);
      await settle();
      if (after === seen()) dead.push(name);
    }
    return [count, dead];
  };
}"""


@pytest.fixture(scope="module", params=SIZES)
def driven(request: pytest.FixtureRequest, opener: Page, address: str) -> Iterator[Page]:
    width, height = SIZES[request.param]
    with opened(opener, address) as page:
        page.set_viewport_size({"width": width, "height": height})
        page.goto("/")
        expect(page.locator("main h1")).to_be_visible()
        settled(page)
        page.evaluate(DRIVER)
        yield page


@pytest.mark.parametrize("place", [*ROOMS, *STATES])
def test_every_control_changes_something_in_sight(driven: Page, place: str):
    count, unseen = driven.evaluate("([place, only]) => unseen(place, only)", [f"?room={place}", STATES.get(place, [])])
    assert count > 0
    assert unseen == []
