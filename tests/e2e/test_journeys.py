"""A person's way through the app, in a browser, on the fake engine."""

import itertools
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Page, expect

from engine.contract import Question
from engine.fake import FakeEngine
from tests.e2e import factories
from tests.e2e.conftest import Watched

OpenPage = Callable[..., Page]

SHIFTS = """
  window.shifted = 0;
  new PerformanceObserver((list) => {
    for (const entry of list.getEntries()) if (!entry.hadRecentInput) window.shifted += entry.value;
  }).observe({ type: "layout-shift", buffered: true });
"""
SEEN = """
  window.seen = new Set();
  new MutationObserver(() => {
    for (const one of ["#answer .tokens.streaming", "#answer .token > a", "#neurons .skeleton"]) {
      if (document.querySelector(one)) window.seen.add(one);
    }
  }).observe(document, { subtree: true, childList: true });
"""
"""Keeps which passing states of a run were on the page: a test that looks for them may come too late."""
NARROW = {"width": 390, "height": 844}


def two_tokens(scene: Path, stem: str) -> str:
    """A question that the fake engine answers with two tokens for this picture."""
    pixels = np.asarray(Image.open(scene).convert("RGB"))
    engine = FakeEngine()
    for number in itertools.count(1):
        question = f"{stem} ({number})"
        if len(engine.ask(Question(pixels, question)).answer.tokens) == 2:
            return question
    raise AssertionError


def ask(page: Page, url: str, scene: Path, question: str) -> None:
    page.goto(url)
    page.set_input_files("#picture-file", scene)
    page.fill("#question", question)
    page.get_by_role("button", name="Ask", exact=True).click()
    page.wait_for_url("**/runs/*", wait_until="commit")


def answered(page: Page) -> None:
    expect(page.locator("#neurons tbody tr").first).to_be_visible()
    expect(page.locator("#status")).to_contain_text("done")


def answer_of(page: Page) -> str:
    return " ".join(page.locator("#answer .word").all_inner_texts())


@pytest.mark.parametrize("viewport", [{"width": 1440, "height": 900}, NARROW], ids=["wide", "narrow"])
def test_ask_stream_inspect_steer(slow: str, open_page: OpenPage, scene: Path, viewport: dict[str, int]) -> None:
    page = open_page(viewport=viewport)
    page.add_init_script(SHIFTS + SEEN)
    ask(page, slow, scene, two_tokens(scene, f"What is on the right, at {viewport['width']}?"))
    answered(page)
    assert page.evaluate("window.seen.size") == 3, page.evaluate("[...window.seen]")
    assert page.evaluate("window.shifted") < 0.02
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    picture, answer = page.locator("#picture").bounding_box(), page.locator("#answer").bounding_box()
    assert picture
    assert answer
    assert picture["y"] <= answer["y"]

    third = page.locator("#neurons a[data-neuron]").nth(2)
    name = third.inner_text()
    third.click()
    expect(page.locator("#picture figcaption .caption").first).to_contain_text(name)
    expect(page.locator("#neurons tr.selected")).to_contain_text(name)
    assert "heat=" in page.url

    said = answer_of(page)
    page.fill("#steer-add", said)
    page.get_by_role("button", name="Add", exact=True).click()
    row = page.locator(".turn-row", has=page.get_by_role("switch", name=f"Steer {said}"))
    row.get_by_role("switch").check()
    expect(row.locator("output")).to_have_text("×0.0")
    expect(page.locator("#steered .said").first).to_have_text(said)
    expect(page.locator("#steered .said.differs")).not_to_have_text(said)
    expect(page.locator("#steered .control")).to_contain_text("random set of equal size:")
    expect(page.locator("#steered .frame")).to_have_count(2)
    steered = page.locator("#steered .said.differs").inner_text()
    assert "heat=" in page.url
    assert "steer=" in page.url

    page.reload()
    expect(page.locator("#steered .said.differs")).to_have_text(steered)
    expect(page.locator("#neurons tr.selected")).to_contain_text(name)
    expect(page.get_by_role("switch", name=f"Steer {said}")).to_be_checked()
    page.locator("#steer [data-reset]").click()
    expect(page.locator("#steered")).to_contain_text("Switch a concept on")
    assert "steer=" not in page.url


def test_the_slider_moved_last_wins(slow: str, open_page: OpenPage, scene: Path) -> None:
    page = open_page()
    ask(page, slow, scene, "Which one wins?")
    answered(page)
    slider = page.locator("#steer .turn-row input[type=range]").first
    for value in ("-2", "1.5", "2.4"):
        slider.fill(value)
        page.wait_for_timeout(150)
    expect(page.locator("#steered .sub")).to_contain_text("λ +2.4")
    expect(page.locator("#steered .control")).to_contain_text("random set of equal size:")
    expect(page.locator("#steered .sub")).to_contain_text("λ +2.4")


def test_a_late_answer_undoes_nothing(slow: str, open_page: OpenPage, scene: Path) -> None:
    """What the reader types and turns while a response is on its way stays."""
    page = open_page()
    ask(page, slow, scene, "Which one wins?")
    answered(page)
    page.route(re.compile("heat="), lambda route: (page.wait_for_timeout(700), route.continue_()))
    page.locator("#neurons a[data-neuron]").nth(2).click()
    page.fill("#steer-add", "half a na")
    page.locator("#steer").get_by_role("switch").first.check()
    expect(page.locator("#neurons tr.selected .rank")).to_have_text("3")
    expect(page.locator("#steer-add")).to_have_value("half a na")
    expect(page.locator("#steer output").first).to_have_text("×0.0")
    expect(page.locator("#steered .sub")).to_contain_text("λ −1")
    page.unroute_all(behavior="ignoreErrors")


def test_reload_in_mid_run(slow: str, open_page: OpenPage, scene: Path) -> None:
    page = open_page()
    ask(page, slow, scene, two_tokens(scene, "What is there, again?"))
    expect(page.locator("#answer .token > a").first).to_be_visible()
    page.reload()
    expect(page.locator("#answer .token > a").first).to_be_visible()
    answered(page)
    said = answer_of(page)
    page.reload()
    assert answer_of(page) == said


def test_a_swap_keeps_focus_and_open_details(slow: str, open_page: OpenPage, scene: Path) -> None:
    page = open_page()
    ask(page, slow, scene, two_tokens(scene, "Does the page keep still?"))
    page.locator("#neurons-checks summary").click()
    page.locator("#overlay").focus()
    answered(page)
    assert page.evaluate("document.activeElement.id") == "overlay"
    assert page.evaluate("document.getElementById('neurons-checks').open")


def test_without_javascript(slow: str, open_page: OpenPage, scene: Path) -> None:
    page = open_page(java_script_enabled=False)
    ask(page, slow, scene, "What does a plain page say?")
    answered(page)
    page.locator("#neurons a[data-neuron]").nth(1).click()
    expect(page.locator("#neurons tr.selected .rank")).to_have_text("2")
    page.locator("#filter-layer").select_option(index=1)
    page.get_by_role("button", name="Apply").click()
    expect(page.locator("#neurons tbody tr").first).to_be_visible()
    said = answer_of(page)
    page.fill("#steer-add", said)
    page.get_by_role("button", name="Add", exact=True).click()
    page.get_by_label(f"λ of {said}:").fill("-1")
    page.get_by_role("button", name="Steer", exact=True).click()
    expect(page.locator("#steered .control")).to_contain_text("random set of equal size:")
    expect(page.locator("#steered .said.differs")).not_to_have_text(said)


def test_keyboard_only(quick: str, open_page: OpenPage, scene: Path) -> None:
    page = open_page()
    ask(page, quick, scene, two_tokens(scene, "Which keys are there?"))
    answered(page)
    keys = page.keyboard
    page.locator("body").press("j")
    keys.press("j")
    keys.press("j")
    keys.press("k")
    focused = page.evaluate("document.activeElement.textContent")
    keys.press("Enter")
    expect(page.locator("#picture figcaption .caption").first).to_contain_text(focused)
    assert page.evaluate("document.activeElement.textContent") == focused
    keys.press("s")
    for _ in range(10):
        keys.press("ArrowLeft")
    expect(page.locator("#steer output").first).to_have_text("×0.0")
    expect(page.locator("#steered .control")).to_contain_text("random set of equal size:")
    keys.press("?")
    expect(page.locator("#help")).to_be_visible()
    keys.press("Escape")
    expect(page.locator("#help")).to_be_hidden()
    keys.press("/")
    keys.type("text.1.7")
    keys.press("Enter")
    expect(page.get_by_label("Multiplier of text.1.7")).to_be_focused()
    page.locator("#answer .token > a").first.focus()
    keys.press("Enter")
    expect(page.locator("#answer .token.target")).to_have_count(1)
    page.locator("#answer .token > a").nth(1).focus()
    keys.press("Shift+Enter")
    expect(page.locator("#answer .token.target")).to_have_count(2)


def test_choose_a_span_by_dragging(quick: str, open_page: OpenPage, scene: Path) -> None:
    page = open_page()
    ask(page, quick, scene, two_tokens(scene, "What can be dragged?"))
    answered(page)
    tokens = page.locator("#answer .token > a")
    tokens.first.click()
    expect(page.locator("#answer .token.target")).to_have_count(1)
    expect(page).to_have_url(re.compile("span=0-1"))
    tokens.first.hover()
    page.mouse.down()
    tokens.nth(1).hover()
    page.mouse.up()
    expect(page.locator("#answer .token.target")).to_have_count(2)
    page.go_back()
    expect(page.locator("#answer .token.target")).to_have_count(1)


def test_theme(quick: str, open_page: OpenPage) -> None:
    page = open_page(color_scheme="dark")
    page.goto(quick)
    ground = "getComputedStyle(document.documentElement).backgroundColor"
    dark = page.evaluate(ground)
    page.get_by_role("button", name="Dark or light theme").click()
    light = page.evaluate(ground)
    assert sum(map(int, re.findall(r"\d+", dark)[:3])) < 150 < 600 < sum(map(int, re.findall(r"\d+", light)[:3]))
    page.reload()
    assert page.evaluate(ground) == light


def test_a_refused_upload_keeps_the_question(quick: str, watched: Watched, scene: Path, tmp_path: Path) -> None:
    watched.expected.append("the server responded with a status of 4")
    fake = tmp_path / "text_as.png"
    fake.write_text("not a picture")
    page = watched.page()
    page.goto(quick)
    page.set_input_files("#picture-file", fake)
    page.fill("#question", "What is this?")
    page.get_by_role("button", name="Ask", exact=True).click()
    expect(page.get_by_role("alert").filter(has_text=re.compile("picture"))).to_be_visible()
    expect(page.locator("#question")).to_have_value("What is this?")
    page.set_input_files("#picture-file", scene)
    page.get_by_role("button", name="Ask", exact=True).click()
    answered(page)
    expect(page.locator("#answer .question")).to_have_text("What is this?")


def test_paste_a_picture(quick: str, open_page: OpenPage) -> None:
    page = open_page()
    page.goto(quick)
    page.evaluate(
        """async (uri) => {
          const bytes = Uint8Array.from(atob(uri.split(",")[1]), (character) => character.charCodeAt(0));
          const clipboardData = new DataTransfer();
          clipboardData.items.add(new File([bytes], "pasted.png", { type: "image/png" }));
          document.body.dispatchEvent(new ClipboardEvent("paste", { clipboardData, bubbles: true, cancelable: true }));
        }""",
        factories.picture_uri(),
    )
    expect(page.locator("#drop img")).to_be_visible()
    expect(page.locator("#picture-note")).to_contain_text("pasted.png")
    page.fill("#question", "What was pasted?")
    page.keyboard.press("Enter")
    page.wait_for_url("**/runs/*")
    answered(page)


def test_concepts_are_found_and_explained(quick: str, open_page: OpenPage) -> None:
    page = open_page()
    page.goto(quick)
    page.locator("body").press("/")
    page.wait_for_url("**/concepts")
    page.locator("body").press("/")
    page.keyboard.type("bear")
    page.keyboard.press("Enter")
    page.get_by_role("link", name="polar bear").click()
    expect(page.locator("h1")).to_have_text("polar bear")
    expect(page.locator(".plot.drawn")).to_have_count(2)
    page.get_by_role("navigation", name="Main").get_by_role("link", name="Model").click()
    expect(page.locator(".checks li").first).to_be_visible()


def test_a_sample_by_keyboard(quick: str, open_page: OpenPage) -> None:
    page = open_page()
    page.goto(quick)
    page.locator(".sample input").first.focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator(".sample input").nth(1)).to_be_checked()
    expect(page.locator("#drop img")).to_be_visible()
    page.keyboard.press("Tab")
    suggestion = page.evaluate("document.activeElement.textContent")
    page.keyboard.press("Enter")
    expect(page.locator("#question")).to_have_value(suggestion)
    expect(page.locator("#question")).to_be_focused()
    page.keyboard.press("Enter")
    page.wait_for_url("**/runs/*")
    answered(page)
    expect(page.locator("#answer .question")).to_have_text(suggestion)


def test_a_steered_run_is_a_run_of_its_own(quick: str, open_page: OpenPage, scene: Path) -> None:
    page = open_page()
    ask(page, quick, scene, "Does a steered run stand alone?")
    answered(page)
    page.locator("#steer").get_by_role("switch").first.check()
    page.get_by_role("link", name="as its own run").click()
    answered(page)
    page.get_by_role("link", name="the original run").click()
    answered(page)
    page.get_by_role("navigation", name="Main").get_by_role("link", name="Runs").click()
    expect(page.locator(".run-line .steering").first).to_be_visible()


def test_the_export_is_of_what_the_page_shows(quick: str, open_page: OpenPage, scene: Path) -> None:
    page = open_page()
    ask(page, quick, scene, two_tokens(scene, "What is exported?"))
    answered(page)
    page.locator("#answer .token > a").first.click()
    expect(page.locator("#answer .token.target")).to_have_count(1)
    page.locator("#steer").get_by_role("switch").first.check()
    expect(page.locator("#steered .control")).to_contain_text("random set of equal size:")
    with page.expect_download() as download:
        page.get_by_role("link", name="export", exact=True).click()
    path, _, query = download.value.url.partition("?")
    assert path.endswith(".json")
    assert query == page.url.partition("?")[2]
    assert "span=0-1" in query
    assert "steer=" in query


def test_alternatives_say_what_they_stand_for(quick: str, open_page: OpenPage, scene: Path) -> None:
    page = open_page()
    ask(page, quick, scene, "What else could it be?")
    answered(page)
    first = page.locator("#answer .word").first.inner_text()
    expect(page.locator("#neurons .sub")).to_have_text(re.compile(r"20 of the \d+ strongest of [\d,]+"))
    said = answer_of(page)
    page.fill("#steer-add", said)
    page.get_by_role("button", name="Add", exact=True).click()
    page.get_by_role("switch", name=f"Steer {said}").check()
    default = page.locator("#steered .alternatives").first
    expect(default.get_by_role("heading")).to_have_text(f"in place of “{first}”, by default")
    assert first not in default.locator("li > span:first-child").all_inner_texts()


def test_cancel(slow: str, open_page: OpenPage, scene: Path) -> None:
    page = open_page()
    ask(page, slow, scene, two_tokens(scene, "Never mind?"))
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator("#status")).to_contain_text("cancelled")
    page.get_by_role("button", name="Ask again").click()
    answered(page)


def test_what_goes_wrong_is_said(quick: str, watched: Watched, scene: Path) -> None:
    watched.expected += ["ERR_INTERNET_DISCONNECTED", "htmx:sendError", "htmx:afterRequest", "status of 4"]
    page = watched.page()
    ask(page, quick, scene, "What goes wrong?")
    answered(page)
    page.fill("#steer-add", "zebre")
    page.get_by_role("button", name="Add", exact=True).click()
    expect(page.get_by_role("alert").filter(has_text="zebre")).to_be_visible()
    expect(page.locator("#steer-add")).to_have_value("zebre")
    expect(page.locator("#neurons tbody tr").first).to_be_visible()
    page.context.set_offline(True)
    page.locator("#neurons a[data-neuron]").nth(1).click()
    expect(page.get_by_role("alert").filter(has_text="does not answer")).to_be_visible()
    page.context.set_offline(False)
    page.locator("#neurons a[data-neuron]").nth(1).click()
    expect(page.locator("#neurons tr.selected .rank")).to_have_text("2")
    expect(page.get_by_role("alert").filter(has_text="does not answer")).to_have_count(0)
