"""The guided tour, as a visitor takes it: every step lights a place that is there, and it can be left at any point."""

from __future__ import annotations

import re

from browser import settled, violations
from playwright.sync_api import Page, expect

STEPS = 12
ROOMS = ["patch"] * 4 + ["projection", "tokens", "tokens", "positions", "attention", "transfer", "memory", "walk"]


def lit_in_view(page: Page) -> bool:
    """Whether exactly one place is lit and its top is on the screen, above the card on a phone."""
    return page.evaluate(
        """() => {
          const lit = [...document.querySelectorAll('[data-lit]')];
          const box = lit[0]?.getBoundingClientRect();
          return lit.length === 1 && box.height > 0 && box.top < innerHeight * 0.5 && box.bottom > 40;
        }"""
    )


def test_a_visitor_is_offered_the_tour_once_and_takes_every_step(page: Page):
    page.evaluate("localStorage.clear()")
    page.goto("/")
    page.get_by_role("button", name="Start the tour").click()
    card = page.get_by_role("complementary", name=re.compile("^Tour, step"))
    for number, room in enumerate(ROOMS, start=1):
        expect(card.get_by_text(f"{number} / {STEPS}")).to_be_visible()
        settled(page)
        page.wait_for_function("document.querySelector('[data-lit]')")
        assert f"room={room}" in page.url
        assert f"tour={number}" in page.url
        assert lit_in_view(page), number
        if number == 9:  # lines of the model's own weights, from the query to as many patches as are drawn
            expect(card.locator("line")).to_have_count(10)
        if number == 7:
            assert card.locator("rect").count() > 16
        assert page.evaluate("document.querySelector('aside').getAnimations({subtree: true}).length") == 0  # calm
        if number < STEPS:
            card.get_by_role("button", name="Next").click()
    card.get_by_text("Why 197 tokens?").click()
    expect(card.get_by_text("196 patches, and one CLS token")).to_be_visible()
    card.get_by_role("button", name="Finish").click()
    expect(card).to_have_count(0)
    assert "tour" not in page.url
    page.reload()
    settled(page)
    assert page.get_by_role("button", name="Start the tour").count() == 0


def test_doing_what_a_step_asks_marks_it_done(page: Page):
    page.goto("/?tour=2")
    task = page.locator(".task")
    expect(task).not_to_have_class(re.compile("done"))
    page.get_by_label("Patch side, exact").fill("32")
    page.get_by_label("Patch side, exact").press("Enter")
    expect(task).to_have_class(re.compile("done"))


def test_a_link_to_a_step_opens_its_room_and_escape_leaves_it(page: Page):
    page.goto("/?tour=8")
    expect(page.get_by_role("heading", level=1)).to_have_text("Positions")
    settled(page)
    assert lit_in_view(page)
    assert violations(page) == []
    page.get_by_role("link", name="Memory").click()
    page.get_by_role("button", name="Back to this step").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Positions")
    page.keyboard.press("Escape")
    expect(page.get_by_role("complementary")).to_have_count(0)
    assert page.locator("[data-lit]").count() == 0
