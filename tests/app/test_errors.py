"""Every error is a page, or a fragment that htmx swaps in; nothing leaks; the right status."""

import asyncio
import contextlib
import threading
from pathlib import Path

import pytest

from engine.contract import Engine, ModelRefused
from engine.fake import FakeEngine
from tests.app.conftest import HTMX, Browser, serving, until


@pytest.mark.parametrize(
    ("path", "status"),
    [("/nowhere", 404), ("/runs/nosuchrun", 404), ("/concepts/pengiun", 404), ("/pictures/abc.png", 404),
     ("/samples/none", 404), ("/static/none.css", 404), ("/runs/nosuchrun/events", 404), ("/runs/x?span=a", 422),
     ("/runs/x?method=magic", 422), ("/runs/x?layer=-1", 422), ("/runs/x?heat=what", 422)],
)  # fmt: skip
def test_as_a_page_and_as_a_fragment(shared: Browser, path: str, status: int) -> None:
    page = shared.http.get(path)
    assert page.status_code == status
    assert "<html" in page.text
    assert 'id="error"' in page.text
    fragment = shared.http.get(path, headers=HTMX)
    assert fragment.status_code == status
    assert "<html" not in fragment.text
    assert fragment.headers["HX-Retarget"] == "#errors"
    assert fragment.headers["HX-Reswap"] == "innerHTML"


def test_an_address_with_a_nul_is_refused(shared: Browser) -> None:
    for path in ("/runs/a%00", "/concepts?q=%00", "/concepts/a%00"):
        assert shared.http.get(path).status_code == 400


def test_a_wrong_method_says_a_right_one(shared: Browser) -> None:
    response = shared.http.delete("/runs")
    assert response.status_code == 405
    assert response.headers["Allow"]


@pytest.mark.parametrize("name", ["empty.png", "truncated.jpg", "text_as.png", "script.svg", "svg_as.png"])
def test_a_bad_picture_keeps_the_question(shared: Browser, pictures: Path, name: str) -> None:
    files = {"picture": (name, (pictures / name).read_bytes())}
    page = shared.http.post("/runs", data={"question": "What is kept?"}, files=files)
    assert page.status_code == 422
    assert 'value="What is kept?"' in page.text
    assert 'role="alert"' in page.text
    files = {"picture": (name, (pictures / name).read_bytes())}
    fragment = shared.http.post("/runs", data={"question": "What is kept?"}, files=files, headers=HTMX)
    assert fragment.status_code == 422
    assert fragment.headers["HX-Retarget"] == "#errors"


def test_a_bad_question_keeps_the_picture(shared: Browser, pictures: Path) -> None:
    files = {"picture": ("ok.png", (pictures / "ok.png").read_bytes())}
    page = shared.http.post("/runs", data={"question": "  "}, files=files)
    assert page.status_code == 422
    assert "The question is empty" in page.text
    kept = page.text.split('name="picture_hash" value="')[1].split('"')[0]
    answered = shared.http.post("/runs", data={"question": "And now?", "picture_hash": kept}, follow_redirects=False)
    assert answered.status_code == 303
    long = shared.http.post("/runs", data={"question": "x" * 1001})
    assert long.status_code == 422
    assert "at most 1000" in long.text


def test_a_picture_without_patches_is_refused_in_words(shared: Browser, pictures: Path) -> None:
    url = shared.ask("What is it?", (pictures / "size_1x1.png").read_bytes(), wait=False)
    assert shared.settled(url)["provenance"]["state"] == "failed"
    page = shared.http.get(url).text
    assert "1 × 1 pixels" in page
    assert "at least 2" in page
    assert shared.settled(shared.ask("What is it?", (pictures / "size_2x2.png").read_bytes()))["answer"]


def test_too_large_a_body_is_answered(tmp_path: Path) -> None:
    with serving(tmp_path, max_upload=1000) as browser:
        response = browser.http.post("/runs", files={"picture": ("a.png", b"x" * 1500)}, data={"question": "?"})
        assert response.status_code == 413
        response = browser.http.post("/runs", content=b"x" * (2**20 + 2000), headers={"Content-Type": "text/plain"})
        assert response.status_code == 413
        assert "larger than" in response.text

        def chunks() -> object:
            for _ in range(40):
                yield b"x" * 2**16

        streamed = browser.http.post(
            "/runs", content=chunks(), headers={"Content-Type": "multipart/form-data; boundary=b"}
        )
        assert streamed.status_code == 413


def test_a_fault_of_ours_is_a_page_without_details(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("secret detail")

    with serving(tmp_path) as browser:
        monkeypatch.setattr("app.queries.recent", broken)
        response = browser.http.get("/")
        assert response.status_code == 500
        assert "secret" not in response.text
        assert "Content-Security-Policy" in response.headers
        assert browser.http.get("/runs").status_code == 200


def test_error_pages_keep_off_the_event_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They read the database, and the event loop serves everyone's streams."""
    on_loop = []

    def length(*_: object, **__: object) -> int:
        with contextlib.suppress(RuntimeError):
            on_loop.append(asyncio.get_running_loop())
        return 7

    def broken(*_: object) -> None:
        raise ZeroDivisionError

    with serving(tmp_path) as browser:
        monkeypatch.setattr("app.queries.recent", broken)
        monkeypatch.setattr("app.queries.queue_length", length)
        assert browser.http.get("/").status_code == 500
        assert browser.http.get("/nowhere").status_code == 404
        assert not on_loop


def test_who_is_refused_at_the_door_costs_no_query(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(tmp_path) as browser:
        monkeypatch.setattr("app.errors.queries", None)
        assert browser.http.get("/", headers={"Host": "evil.example"}).status_code == 421
        assert browser.http.post("/runs", headers={"Sec-Fetch-Site": "cross-site"}).status_code == 403
        large = {"Content-Type": "text/plain", "Content-Length": str(10**9)}
        assert browser.http.post("/runs", content=b"x", headers=large).status_code == 413


@pytest.mark.parametrize(
    "path", ["/", "/runs", "/concepts", "/models", "/healthz", "run", "/nowhere", "/static/app.css"]
)
def test_head_is_get_without_the_body(shared: Browser, path: str) -> None:
    address = shared.ask() if path == "run" else path
    whole, head = shared.http.get(address), shared.http.head(address)
    assert head.status_code == whole.status_code
    assert head.content == b""
    assert head.headers["content-type"] == whole.headers["content-type"]


def test_a_layer_that_is_not_there_is_said(shared: Browser) -> None:
    response = shared.http.get(f"{shared.ask()}?layer=999")
    assert response.status_code == 422
    assert "its layers go from 0 to 3" in response.text


def test_a_refused_model_is_explained_everywhere(tmp_path: Path) -> None:
    def refuse() -> Engine:
        raise ModelRefused("The logits differ at position 3. Use another model.")

    with serving(tmp_path, refuse, ready=False) as browser:
        until(lambda: browser.services.worker.state, lambda state: state == "refused")
        for path in ("/", "/runs", "/models", "/concepts"):
            page = browser.http.get(path)
            assert page.status_code == 200
            assert "The logits differ at position 3" in page.text
        response = browser.http.post("/runs", data={"question": "What is it?"})
        assert response.status_code == 503
        assert browser.http.get("/healthz").status_code == 503


def test_a_model_that_cannot_be_loaded_does_not_take_the_pages_down(tmp_path: Path) -> None:
    def broken() -> Engine:
        raise OSError("disk on fire")

    with serving(tmp_path, broken, ready=False) as browser:
        until(lambda: browser.services.worker.state, lambda state: state == "refused")
        assert "disk on fire" in browser.http.get("/").text


def test_questions_wait_while_the_model_loads(tmp_path: Path) -> None:
    there = threading.Event()

    def loaded() -> Engine:
        there.wait(20)
        return FakeEngine()

    with serving(tmp_path, loaded, ready=False) as browser:
        asks = 'id="model-now" class="loading" hx-get="/models"'
        assert asks in browser.http.get("/").text, "the page goes on asking for the model"
        assert browser.http.get("/healthz").json()["model"] == "loading"
        url = browser.ask(wait=False)
        assert "loading the model" in browser.http.get(url).text
        assert browser.ask(wait=False) == url
        there.set()
        assert browser.settled(url)["answer"]
        assert browser.ask() == url, "the run has its true identity now"
        assert asks not in browser.http.get("/models").text


def test_a_full_queue_says_so(tmp_path: Path) -> None:
    with serving(tmp_path, lambda: FakeEngine(load_delay=0.4), ready=False, max_queue=2) as browser:
        for number in range(2):
            browser.ask(f"What is {number}?", wait=False)
        response = browser.http.post("/runs", data={"question": "One more?"})
        assert response.status_code == 503
        assert "at most 2" in response.text
