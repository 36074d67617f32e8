"""Whole sparse autoencoders on the pages: attached from where pages may look, tried, let go, there after a start."""

import html
import json
import re
from pathlib import Path
from typing import Any

import pytest

from app import saeplaces
from app.settings import Settings
from app.tables import AttachedSae, JobRow
from engine.contract import RequestError, saes
from engine.fake import FakeEngine
from tests.app.conftest import Browser, serving, until


def files(folder: Path, name: str = "mine", layer: int = 2, width: int = 16) -> Path:
    """An SAE as the fake engine reads it."""
    folder.mkdir(parents=True, exist_ok=True)
    card = {"name": name, "layer": layer, "site": "residual", "d_model": width}
    (folder / "card.json").write_text(json.dumps(card))
    return folder


def asked(folder: Path) -> Path:
    """A folder to train on."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "questions.csv").write_text("question\nwhat is this?\n")
    return folder


def page(browser: Browser, url: str = "/saes") -> str:
    return " ".join(html.unescape(browser.http.get(url).text).split())


def attach(browser: Browser, path: object, **more: str) -> Any:
    return browser.http.post("/saes/attach", data={"path": str(path), **more}, follow_redirects=False)


def names(browser: Browser) -> list[str]:
    return [sae.name for sae in browser.services.worker.saes]


def rows(browser: Browser, table: Any) -> list[Any]:
    with browser.services.database.read() as session:
        return list(session.query(table))


def test_what_is_attached_is_tried_listed_and_there_after_a_start(tmp_path: Path) -> None:
    with serving(tmp_path) as browser:
        folder = files(tmp_path / "saes" / "one")
        response = attach(browser, folder)
        assert response.status_code == 303, response.text
        text = page(browser, response.headers["location"])
        assert "It is attached now, and will be after a restart." in text
        assert "Tried on four pictures of the little world with their questions" in text
        assert re.search(r"<dt>explained variance</dt><dd class=\"figure\">0.78", text)
        assert names(browser) == ["fake-residual-2", "mine"]
        (row,) = rows(browser, AttachedSae)
        assert (row.id, row.path, row.layer, row.site) == ("fake-mine", str(folder), None, None)
        assert text.count('action="/saes/detach"') == 1, "what ships with the model stays"
        assert "It is attached now" not in page(browser)
    with serving(tmp_path) as browser:
        assert names(browser) == ["fake-residual-2", "mine"]
        assert page(browser).count("Tried on") == 1
        url = browser.ask("Is it usable?")
        assert '<option value="mine"' in browser.http.get(url).text
        sae_id = browser.services.worker.saes[1].id
        response = browser.http.post("/saes/detach", data={"id": sae_id}, follow_redirects=False)
        assert response.headers["location"] == "/saes"
        assert names(browser) == ["fake-residual-2"]
        assert not rows(browser, AttachedSae)
        assert attach(browser, folder).status_code == 303, "and it can be attached again"
        assert names(browser) == ["fake-residual-2", "mine"]
        assert browser.http.post("/saes/detach", data={"id": "fake-sae-1"}).status_code == 404


def test_a_place_that_a_person_says_is_remembered_and_warnings_are_shown(tmp_path: Path) -> None:
    with serving(tmp_path) as browser:
        response = attach(browser, files(tmp_path / "saes" / "one"), layer="1", site="mlp")
        text = page(browser, response.headers["location"])
        assert "at the MLP of layer 1" in text
        assert "It explains 40 % of the variance here; its card says 80 %." in text
    with serving(tmp_path) as browser:
        sae = browser.services.worker.saes[1]
        assert (sae.layer, sae.site) == (1, "mlp")
        assert "It explains 40 %" in page(browser)


def test_other_models_are_tried_on_the_newest_questions(tmp_path: Path, pictures: Path) -> None:
    seen: list[int] = []

    class Stranger(FakeEngine):
        def check_sae(self, sae: str, questions: Any = ()) -> saes.SaeFit:
            seen.append(len(questions))
            raise RequestError("The picture is too small.")

    with serving(tmp_path, Stranger) as browser:
        for text in ("What is it?", "What is that?"):
            browser.ask(text, (pictures / "ok.png").read_bytes())
        browser.ask("Without a picture?")
        response = attach(browser, files(tmp_path / "saes" / "one"))
        assert seen == [2]
        text = page(browser, response.headers["location"])
        assert "It is attached, but could not be tried: The picture is too small." in text
        assert names(browser) == ["fake-residual-2", "mine"]


def test_what_does_not_fit_is_told_and_nothing_typed_is_lost(tmp_path: Path) -> None:
    with serving(tmp_path) as browser:
        wide = files(tmp_path / "saes" / "wide", width=17)
        response = attach(browser, wide, layer="3", site="attention")
        assert response.status_code == 422
        text = " ".join(html.unescape(response.text).split())
        assert "reads 17 numbers; this model has 16." in text
        assert f'name="path" value="{wide}"' in text
        assert 'name="layer" value="3"' in text
        assert '<option value="attention" selected>' in text
        assert names(browser) == ["fake-residual-2"]
        assert not rows(browser, JobRow), "an attempt that was told of is forgotten"
        for layer, words in (("x", "it must be a whole number from 0"), ("²", "whole number"), ("-1", "whole number")):
            response = attach(browser, wide, layer=layer)
            assert response.status_code == 422
            assert words in html.unescape(response.text)
        assert "There is no site “nose”" in html.unescape(attach(browser, wide, site="nose").text)


OUTSIDE = [
    "/etc",
    "/etc/passwd",
    "..",
    "../outside",
    "one/../../outside",
    "link",
    "~",
    "owner/name",
    "",
    "\0",
    "a" * 600,
]


@pytest.mark.parametrize("typed", OUTSIDE)
def test_nothing_outside_is_looked_at(typed: str, tmp_path: Path) -> None:
    files(tmp_path / "outside")
    data = tmp_path / "data"
    files(data / "saes" / "one")
    (data / "saes" / "link").symlink_to(tmp_path / "outside")
    with pytest.raises(RequestError, match=r"is not among what pages may open|Give a folder"):
        saeplaces.sae(Settings(model="fake", data_dir=data), typed)


def test_inside_is_what_the_operator_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = files(tmp_path / "data" / "saes" / "one"), files(tmp_path / "more" / "other")
    settings = Settings(model="fake", data_dir=tmp_path / "data", sae_dirs=(tmp_path / "more",), sae_hub=True)
    assert saeplaces.sae(settings, str(one)) == str(one)
    assert saeplaces.sae(settings, " one ") == str(one)
    assert saeplaces.sae(settings, str(other / "card.json")) == str(other / "card.json")
    assert saeplaces.sae(settings, "google/gemma-scope-2b-pt-res/layer_20") == "google/gemma-scope-2b-pt-res/layer_20"
    monkeypatch.chdir(tmp_path)  # a name on a hub must not be a way to a folder beside the server
    for typed in ("more/other/../../outside", "owner/../x", "owner/name/..", "data/saes"):
        with pytest.raises(RequestError, match="is not among what pages may open"):
            saeplaces.sae(settings, typed)
    closed = Settings(model="fake", data_dir=tmp_path / "data")
    with pytest.raises(RequestError, match="started without --sae-hub"):
        saeplaces.sae(closed, "google/gemma-scope-2b-pt-res")


def test_a_path_outside_is_refused_on_the_page(browser: Browser, tmp_path: Path) -> None:
    response = attach(browser, "/etc/<b>")
    assert response.status_code == 422
    assert "is not among what pages may open" in response.text
    assert "--sae-dir FOLDER" in response.text
    assert "<b>" not in response.text
    assert not rows(browser, JobRow)


def test_what_is_gone_at_a_start_is_a_sentence_and_the_rest_stands(tmp_path: Path) -> None:
    with serving(tmp_path) as browser:
        for name in ("one", "two", "three"):
            assert attach(browser, files(tmp_path / "saes" / name, name)).status_code == 303
    (tmp_path / "saes" / "one" / "card.json").unlink()
    files(tmp_path / "saes" / "two", "another")
    for _ in range(2):  # however often it starts, it is told once
        with serving(tmp_path) as browser:
            assert browser.services.worker.state == "ready"
            assert names(browser) == ["fake-residual-2", "three"]
            text = page(browser)
            assert text.count("could not be attached again at the start.") == 2
            assert "holds no SAE that is known" in text
            assert "Its files hold another SAE now." in text
    with serving(tmp_path) as browser:
        files(tmp_path / "saes" / "one", "one")
        again, forget = (
            re.findall(rf'action="(/saes/attempts/\w+/{what})"', page(browser)) for what in ("again", "forget")
        )
        text = page(browser)
        failed = {re.search(rf"<h2>(\w+)</h2>(?:(?!<h2>).)*{re.escape(url)}", text)[1]: url for url in again}  # type: ignore[index]
        assert browser.http.post(failed["one"], follow_redirects=False).status_code == 303
        assert names(browser) == ["fake-residual-2", "three", "one"]
        (left,) = re.findall(r'action="(/saes/attempts/\w+/forget)"', page(browser))
        assert left in forget
        assert browser.http.post(left, follow_redirects=False).status_code == 303
        assert "attempts" not in page(browser)
        assert {row.name for row in rows(browser, AttachedSae)} == {"one", "three"}
        assert browser.http.post(left).status_code == 404
    with serving(tmp_path) as browser:
        assert sorted(names(browser)) == ["fake-residual-2", "one", "three"]


def test_a_broken_reader_does_not_keep_the_model_away(tmp_path: Path) -> None:
    with serving(tmp_path) as browser:
        attach(browser, files(tmp_path / "saes" / "one"))

    class Broken(FakeEngine):
        def attach_sae(self, *args: Any, **more: Any) -> saes.SaeInfo:
            raise MemoryError("no room")

    with serving(tmp_path, Broken) as browser:
        assert "MemoryError: no room" in page(browser)


def test_attaching_passes_slow_work(tmp_path: Path) -> None:
    with serving(tmp_path, lambda: FakeEngine(0.02)) as browser:
        training = {"layer": "1", "steps": "400", "name": "slow", "source": "folder", "folder": "pictures"}
        asked(tmp_path / "saes" / "pictures")
        url = browser.http.post("/saes/train", data=training, follow_redirects=False).headers["location"]
        assert attach(browser, files(tmp_path / "saes" / "one")).status_code == 303
        until(lambda: names(browser), lambda found: found == ["fake-residual-2", "mine"])
        assert browser.http.get(f"{url}.json").json()["state"] == "running"
        browser.http.post(f"{url}/cancel")
