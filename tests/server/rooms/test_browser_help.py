"""What the page says about itself and its state, in a real browser: help, links, commands, crops, lost images."""

from __future__ import annotations

import io
import re
import shlex

import pytest
from browser import settled
from client import client
from PIL import Image
from playwright.sync_api import Page, expect

from command import call

ROOMS = list(client().get("/api/controls").json()["rooms"])


def ready(page: Page, query: str) -> None:
    page.goto(f"/?{query}")
    expect(page.locator("main h1")).to_be_visible()
    settled(page)


def test_help_opens_by_keyboard_by_pointer_and_by_touch(page: Page):
    ready(page, "room=patch")
    mark = page.get_by_role("button", name="About Batch", exact=True)
    bubble = page.get_by_role("tooltip").filter(has_text="Images per device")
    page.get_by_label("Patch side, exact").focus()
    for _ in range(4):  # the slider, "not square?", the mark
        page.keyboard.press("Tab")
        if mark.evaluate("mark => mark === document.activeElement"):
            break
    expect(bubble).to_be_visible()
    page.keyboard.press("Escape")
    expect(bubble).to_be_hidden()
    mark.hover()
    expect(bubble).to_be_visible()
    page.mouse.move(0, 0)
    expect(bubble).to_be_hidden()
    mark.evaluate("mark => mark.click()")  # as a finger does, without a pointer that hovers
    expect(bubble).to_be_visible()


def test_a_figure_explains_itself_with_formula_numbers_letters_and_folklore(page: Page):
    ready(page, "room=patch")
    page.get_by_role("button", name="About attention elements").hover()
    bubble = page.get_by_role("tooltip").filter(visible=True)
    expect(bubble).to_contain_text("N²")
    expect(bubble).to_contain_text("197² = 38,809")
    expect(bubble).to_contain_text("N number of tokens, prefix included")
    expect(bubble).to_contain_text("Often claimed: image side doubled, attention, 4×. Correct: 16×")


UNITS = {"k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "ms": 1e-3, "µs": 1e-6}


def amount(text: str) -> tuple[float, float]:
    """Return a number that is written for people, and half a unit of its last digit."""
    found = re.match(r"< |([−-]?)([\d,]+)(?:\.(\d+))? ?(%|[KMG]iB|ms|µs|[kMGT](?=FLOP|×|$))?", text)
    assert found, text
    if text.startswith("<"):  # "< 0.1 %"
        return 0.0, 0.001
    sign, whole, digits, unit = found.groups()
    scale = 0.01 if unit == "%" else UNITS.get(unit or "", 1)
    value = float(f"{whole.replace(',', '')}.{digits or 0}")
    return (-value if sign else value) * scale, 0.5 * 10.0 ** -len(digits or "") * scale


@pytest.mark.parametrize(
    "room",
    [
        "patch",
        "projection",
        "tokens",
        "positions",
        "transfer",
        "memory",
        "attention",
        "decide",
        "match",
        "dense",
        "folder",
    ],
)
def test_every_figure_is_explained_by_a_formula_that_gives_its_number(page: Page, room):
    ready(page, f"room={room}")
    figures = page.locator(".figure").all()
    assert len(figures) > 2
    for figure in figures:
        label, shown = figure.locator("dt").inner_text(), figure.locator(".value").inner_text()
        mark = figure.get_by_role("button", name=f"About {label}", exact=True)
        mark.evaluate("mark => mark.click()")  # as a finger does, without a pointer that hovers
        bubble = page.get_by_role("tooltip").filter(visible=True)
        expect(bubble.locator(".symbols")).not_to_be_empty()
        numbers = bubble.locator(".numbers").inner_text()
        (value, off), (result, rounded) = amount(shown), amount(re.split("[=≈] ", numbers)[-1])
        assert value == pytest.approx(result, abs=1.01 * (off + rounded)), (label, shown, numbers)
        mark.press("Escape")


@pytest.mark.parametrize("room", ROOMS)
def test_every_column_of_numbers_is_explained_in_its_heading(page: Page, room):
    ready(page, f"room={room}&height=250")
    silent = page.evaluate(
        """() => [...document.querySelectorAll('.panel table')].flatMap((table) => {
          const heads = [...table.querySelectorAll('thead th')];
          const rows = [...table.querySelectorAll('tbody tr')];
          if (heads[0]?.querySelector('.explain')) return []; // one mark for a whole matrix
          return heads.filter((head, column) => column > 0 && !head.querySelector('.explain')
            && rows.some((row) => /^[<≈÷−]? ?\\d/.test(row.cells[column]?.textContent.trim() ?? '')))
            .map((head) => head.textContent.trim());
        })"""
    )
    assert silent == []


def test_reset_returns_to_the_defaults_and_back_undoes_it(page: Page):
    ready(page, "room=memory&batch=7&precision=fp32&image=window")
    page.get_by_role("button", name="Reset").click()
    expect(page.get_by_label("Batch, exact")).to_have_value("32")
    expect(page).not_to_have_url(re.compile("precision"))
    expect(page).to_have_url(re.compile("image=window"))
    page.go_back()
    expect(page.get_by_label("Batch, exact")).to_have_value("7")


def test_the_link_and_the_command_are_copied_and_shown(page: Page, capsys):
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    ready(page, "room=memory&batch=7&model=S/16")
    page.get_by_role("button", name="Copy link").click()
    expect(page.locator(".tools").get_by_role("status")).to_contain_text("Link copied")
    assert page.evaluate("navigator.clipboard.readText()") == page.url
    page.get_by_role("button", name="Copy command").click()
    expect(page.locator(".tools").get_by_role("status")).to_contain_text("vitrail plan S/16")
    program, *words = shlex.split(page.evaluate("navigator.clipboard.readText()"))
    assert program == "vitrail"
    assert call(*words) == 0
    assert "S/16" in capsys.readouterr().out


def test_a_link_to_an_image_that_is_gone_says_so_and_shows_the_default(page: Page):
    ready(page, "room=patch&image=0123456789abcdef")
    expect(page.get_by_role("status").filter(has_text="no longer stored")).to_be_visible()
    expect(page.get_by_alt_text("A cat, looking past you")).to_be_visible()
    expect(page).not_to_have_url(re.compile("image="))


@pytest.mark.parametrize(
    ("query", "words", "settled_at"),
    [
        ("room=attention&token=9999&layer=40", "Layer 40 is beyond −1 to 5, so 5 is shown; Token 9999 is", "token=256"),
        ("room=walk&block=0&head=63&key=300&seen=32", "Head 63 is beyond 0 to 3, so 3 is shown; Key 300 is", "key=64"),
        ("room=memory&batch=0", "Batch 0 is beyond 1 to 4096, so 1 is shown.", "batch=1"),
    ],
)
def test_a_link_beyond_the_model_is_brought_into_its_range_and_says_so_once(page: Page, query, words, settled_at):
    ready(page, query)
    told = page.locator("main").get_by_role("status").filter(has_text="is beyond")
    expect(told).to_contain_text(words)
    expect(page).to_have_url(re.compile(settled_at))
    expect(page.locator(".error")).to_have_count(0)
    page.get_by_role("button", name="Reset").click()
    expect(told).to_have_count(0)


def test_no_help_is_only_a_title_and_no_words_are_only_in_styles(page: Page):
    """A title shows to a mouse alone; generated content is missing from exports and from what is copied."""
    for room in ROOMS:
        ready(page, f"room={room}&height=250")
        assert page.locator("[title], svg title").count() == 0, room
        generated = page.evaluate(
            """() => [...document.querySelectorAll('#app *')].flatMap((element) => ['::before', '::after']
              .map((part) => getComputedStyle(element, part).content)
              .filter((content) => !['none', 'normal', '""'].includes(content)))"""
        )
        assert generated == [], room


def test_a_crop_is_told_and_the_image_s_own_shape_is_offered(page: Page):
    ready(page, "room=patch")
    picture = io.BytesIO()
    Image.new("RGB", (128, 64), (20, 160, 90)).save(picture, "PNG")
    file = {"name": "wide.png", "mimeType": "image/png", "buffer": picture.getvalue()}
    page.get_by_label("Upload your image").set_input_files(file)  # type: ignore[arg-type]
    expect(page.get_by_text("Your image is 64 × 128; the model gets its centre, 50 % of it.")).to_be_visible()
    page.get_by_role("button", name="My image's shape: 160 × 320").click()
    expect(page.get_by_role("img", name="10 rows and 20 columns")).to_be_visible()
    expect(page.get_by_text("the model gets its centre")).to_have_count(0)


def test_a_crop_keeps_the_centre_in_the_drawing(page: Page):
    """At 250 px, 10 pixels are lost: 5 at every side are tinted red, as the model takes the centre."""
    ready(page, "room=patch&height=250&width=250&remainder=crop&image=window")
    tinted = """() => {
      const canvas = document.querySelector('.cut canvas');
      const pen = new OffscreenCanvas(100, 100).getContext('2d', { willReadFrequently: true });
      if (canvas.width > 1) pen.drawImage(canvas, 0, 0, 100, 100);
      const red = (x, y) => {
        const [r, g, b] = pen.getImageData(x, y, 1, 1).data;
        return r > 110 && g < 100 && b < 130;
      };
      return red(0, 50) && red(99, 50) && red(50, 0) && red(50, 99);
    }"""
    page.wait_for_function(tinted)


def test_what_does_not_fit_is_not_called_a_batch_of_zero(page: Page):
    ready(page, "room=memory&model=H/14&height=1024&width=1024&attention=eager&card=t4")
    expect(page.locator(".figure", has_text="likely largest batch")).to_contain_text("none fits")


def test_an_accuracy_stands_beside_costs_at_its_own_image_size(page: Page):
    ready(page, "room=models&up=accuracy")
    row = page.get_by_role("row").filter(has=page.get_by_role("button", name="B/16", exact=True))
    expect(row).to_contain_text("at 384 px")
    expect(page.get_by_role("button", name="B/16: forward FLOPs 111 G")).to_be_visible()


def test_a_clicked_head_appears_beside_the_wall(page: Page):
    ready(page, "room=attention")
    wall = page.get_by_role("slider", name="Head", exact=True)
    wall.scroll_into_view_if_needed()
    wall.press("ArrowUp")
    detail = page.get_by_role("region", name=re.compile("^Layer 4, head"))
    expect(detail).to_be_in_viewport(ratio=0.5)
    page.set_viewport_size({"width": 390, "height": 844})
    page.evaluate("scrollTo(0, 0)")
    wall.press("ArrowUp")
    expect(page.get_by_role("region", name=re.compile("^Layer 3, head"))).to_be_in_viewport(ratio=0.3)
