"""`make bench`, second half: what a person at the browser waits for. Medians in one run, on the built-in model.

Starts `sfumato serve` on a free port with an empty data folder, and drives it with Chromium:

- ask → everything: from the click on *Ask* (a new picture each time) until the answer, the ranked neurons, the heat map
  and the steering panel stand on the page;
- steering toggle → steered answer: from the click on the first concept's switch until the steered answer stands there;
- λ change → steered answer: from a slider's new value until the answer steered by it, of several tokens, stands there;
- a cached run's page: the server's time for the HTML, without a browser.

    python scripts/bench_pages.py [--asks 15] [--json FILE]
"""

import argparse
import io
import json
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx
from PIL import Image
from playwright.sync_api import Page, sync_playwright

sys.path.insert(0, str(Path(__file__).parent.parent))

from engine.builtin import scenes, world
from tests.support import CHROMIUM_FLAGS, find_chromium

LIVE = "λ change → steered answer"
GOALS = {"ask → everything": 500, "steering toggle → steered answer": 200, LIVE: 250, "cached run": 50}
"""Milliseconds."""


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def wait_until_ready(base: str, seconds: float = 120) -> None:
    """Until the model is loaded. Raises TimeoutError."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            if httpx.get(f"{base}/healthz").json()["model"] == "ready":
                return
        except httpx.TransportError:
            pass
        time.sleep(0.2)
    raise TimeoutError(f"{base} was not ready within {seconds:g} s")


def new_picture(number: int) -> bytes:
    """A PNG of a fresh scene of two things."""
    scene = scenes.make_scene(scenes.seeded("bench pages", number), ["penguin", "pizza"])
    buffer = io.BytesIO()
    Image.fromarray(scenes.render(scene).pixels).resize((504, 504)).save(buffer, "PNG")
    return buffer.getvalue()


def ask(page: Page, base: str, number: int, question: str = "what is on the left?") -> float:
    """Milliseconds from the click to the complete page."""
    page.goto(base)
    page.set_input_files(
        "input[type=file]", {"name": f"{number}.png", "mimeType": "image/png", "buffer": new_picture(number)}
    )
    page.fill("[name=question]", question)
    page.wait_for_timeout(300)
    began = time.perf_counter()
    page.get_by_role("button", name="Ask", exact=True).click()
    page.wait_for_function(
        "() => document.querySelector('#neurons tbody tr') && document.querySelector('#picture svg rect') "
        "&& document.querySelector('#steer-form input[type=range]') && document.querySelector('#status.done')",
        polling="raf",
    )
    return 1000 * (time.perf_counter() - began)


def toggle(page: Page) -> float:
    """Milliseconds from switching the leading concept on to the finished steered answer."""
    page.wait_for_timeout(300)
    began = time.perf_counter()
    page.locator("#steer-form input[data-switch]").first.click(force=True)
    page.wait_for_function("() => document.querySelector('#steered .side.turned .pair')", polling="raf")
    return 1000 * (time.perf_counter() - began)


def slide(page: Page, lam: float) -> float:
    """Milliseconds from the leading concept's new λ to the finished answer of that λ."""
    page.wait_for_timeout(300)
    shown = page.url
    began = time.perf_counter()
    page.locator("#steer-form input[type=range]").first.evaluate(
        "(slider, lam) => { slider.value = lam; slider.dispatchEvent(new Event('input', {bubbles: true})); "
        "slider.dispatchEvent(new Event('change', {bubbles: true})); }",
        lam,
    )
    page.wait_for_function(
        "(shown) => location.href !== shown && document.querySelector('#steered .side.turned .pair')",
        arg=shown,
        polling="raf",
    )
    return 1000 * (time.perf_counter() - began)


def measure(base: str, asks: int) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in GOALS}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=list(CHROMIUM_FLAGS))
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        for number in range(asks + 2):
            asked = ask(page, base, number)
            address = page.url
            turned = toggle(page)
            ask(page, base, number, "describe the picture.")
            toggle(page)
            slid = slide(page, 1 + number % 3)
            if number >= 2:  # the first two warm the server and the browser up
                times["ask → everything"].append(asked)
                times["steering toggle → steered answer"].append(turned)
                times[LIVE].append(slid)
        browser.close()
    with httpx.Client() as client:
        for _ in range(30):
            began = time.perf_counter()
            client.get(address).raise_for_status()
            times["cached run"].append(1000 * (time.perf_counter() - began))
    return times


def quiz(base: str, n: int) -> tuple[int, int]:
    """(right, asked): what is this, which colour, is there a … about `n` new pictures each, through the page's form."""
    right = asked = 0
    with httpx.Client(base_url=base, follow_redirects=True, timeout=60) as client:
        for number in range(n):
            rng = scenes.seeded("quiz", number)
            thing, other = rng.sample(world.NAMES, 2)
            colour, shape = rng.choice(list(world.COLOURS)), rng.choice(world.SHAPES)
            shown = rng.choice((thing, other))
            for names, question, answer in (
                ([thing], "What is this?", thing),
                ([f"{colour} {shape}", other], f"Which colour is the {shape}?", colour),
                ([thing, f"{colour} {shape}"], f"Is there {world.article(shown)}?", "yes" if shown == thing else "no"),
            ):
                buffer = io.BytesIO()
                scene = scenes.make_scene(rng, names)
                Image.fromarray(scenes.render(scene).pixels).resize((504, 504)).save(buffer, "PNG")
                files = {"picture": ("scene.png", buffer.getvalue(), "image/png")}
                page = client.post("/runs", data={"question": question}, files=files)
                run = client.get(f"{page.url.path}.json").json()
                while run["provenance"]["state"] in ("queued", "running"):
                    time.sleep(0.05)
                    run = client.get(f"{page.url.path}.json").json()
                asked += 1
                right += run["answer"] == answer
    return right, asked


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--asks", type=int, default=15)
    parser.add_argument("--quiz", type=int, default=0, help="also ask simple questions about this many new pictures")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if find_chromium() is None:
        print("pages: no Chromium, so what a person waits for is not measured")
        return
    port = free_port()
    base = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "app.cli", "serve", "--port", str(port), "--data-dir", folder]
        server = subprocess.Popen(  # noqa: S603 - our own server
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            wait_until_ready(base)
            times = measure(base, arguments.asks)
            right, asked = quiz(base, arguments.quiz)
        finally:
            server.terminate()
            server.wait(20)
    medians = {name: statistics.median(values) for name, values in times.items()}
    print(f"pages, built-in model, Chromium on the same machine, medians of {arguments.asks} (cached run: of 30)")
    for name, value in medians.items():
        print(f"  {name:34s} {value:6.0f} ms  (goal < {GOALS[name]} ms)")
    if asked:
        print(f"  simple questions about new pictures, through the page: {right} of {asked} right")
    if arguments.json:
        arguments.json.write_text(json.dumps({"median_ms": medians}, indent=1, ensure_ascii=False) + "\n", "utf-8")


if __name__ == "__main__":
    main()
