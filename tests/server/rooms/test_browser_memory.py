"""Room 6 in a real browser."""

from __future__ import annotations

from playwright.sync_api import Page, expect


def test_a_batch_that_does_not_fit_is_told_with_what_to_change(page: Page):
    page.goto("/?room=memory")
    verdict = page.locator(".verdict")
    expect(verdict).to_contain_text("Likely fits")
    page.get_by_label("Batch, exact").fill("1024")
    page.keyboard.press("Enter")
    expect(verdict).to_contain_text("Likely does not fit")
    first = page.get_by_role("region", name="What to change first").locator("li").first
    expect(first).to_contain_text("accumulate")
    expect(first).to_contain_text("none: the effective batch")


def test_the_largest_batch_is_one_click_away_and_back_returns(page: Page):
    page.goto("/?room=memory")
    offer = page.get_by_role("region", name="What to change first").get_by_role("button", name="328")
    offer.click()
    expect(page.get_by_label("Batch, exact")).to_have_value("328")
    expect(page.locator(".verdict")).to_contain_text("Likely fits")
    page.go_back()
    expect(page.get_by_label("Batch, exact")).to_have_value("32")


def test_choices_change_the_bar(page: Page):
    page.goto("/?room=memory&attention=eager")
    legend = page.locator(".legend")
    expect(legend).to_contain_text("attention maps 682 MiB")
    page.get_by_text("flash", exact=True).click()
    expect(legend).to_contain_text("attention maps 3.46 MiB")
    page.get_by_label("Sharding", exact=True).select_option("fsdp")
    expect(page.get_by_role("slider", name="Devices")).to_be_visible()
    page.get_by_role("checkbox", name="Training").uncheck()
    expect(page.get_by_role("region", name="One inference")).to_be_visible()
    expect(legend).not_to_contain_text("optimizer")


def test_a_pinned_step_stands_below_the_new_one(page: Page):
    page.goto("/?room=memory&batch=64&pin=batch%3D16")
    bars = page.get_by_role("img", name="now: ")
    expect(bars).to_be_visible()
    expect(page.get_by_role("img", name="pinned: ")).to_be_visible()


def test_the_curve_is_exported_with_its_numbers(page: Page):
    page.goto("/?room=memory")
    section = page.get_by_role("region", name="Memory against image size")
    expect(section.locator("svg[data-picture]")).to_be_visible()
    section.get_by_text("Export").click()
    with page.expect_download() as download:
        section.get_by_role("button", name="CSV").click()
    lines = download.value.path().read_text().splitlines()
    assert lines[0].startswith("height,width,weights,gradients,optimizer,activations")
    assert any(line.startswith("224,224,") for line in lines)


def test_pointing_at_the_timeline_tells_the_operation(page: Page):
    page.goto("/?room=memory")
    section = page.get_by_role("region", name="Through the step")
    told = section.get_by_role("status")
    expect(told).to_contain_text("at the peak, in backward")
    section.locator("svg[data-picture]").hover(position={"x": 120, "y": 200})
    expect(told).to_contain_text("in forward, after")
    expect(told).to_contain_text("blocks.")
