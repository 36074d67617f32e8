"""Names as anybody types them: how long they may be, what is left of them, and the way back from a refusal."""

from pathlib import Path

import pytest

from app import formats, notes, saeplaces
from app.settings import Settings
from tests.app.conftest import Browser

LONG = "x" * 5000


@pytest.fixture
def url(shared: Browser, pictures: Path) -> str:
    return shared.ask("Which name is that?", (pictures / "ok.png").read_bytes())


@pytest.mark.parametrize(
    ("typed", "kept"),
    [
        ("\u202eevil", "evil"),
        ("a\u200fb\u200b", "ab"),
        ("a\0\nb", "a b"),
        ("\u200f\u202e \u200b", ""),
        ("\u200d", ""),
        ("👩\u200d🎨 می\u200cخواهم", "👩\u200d🎨 می\u200cخواهم"),
        ("  two   words ", "two words"),
    ],
)
def test_a_name_keeps_what_can_be_seen(typed: str, kept: str) -> None:
    assert formats.name_of(typed) == kept
    assert notes.cleaned(typed, "")[0] == kept


def test_a_preset_is_saved_without_marks_of_direction(shared: Browser, url: str) -> None:
    run = url.rsplit("/", 1)[1]
    fields = {"preset": "quiet\u200f \u202epenguins", "concept:penguin": "-1"}
    saved = shared.http.post(f"/presets?run={run}", data=fields)
    assert saved.status_code < 400
    assert "quiet penguins" in shared.http.get("/presets").text


@pytest.mark.parametrize(
    "fields",
    [{f"concept:{LONG}": "1"}, {f"concept:{LONG}": "99"}, {f"neuron:{LONG}": "2"}, {f"latent:{LONG}": "2"},
     {"concept:penguin": "1", "positions": LONG}],
)  # fmt: skip
def test_a_refusal_does_not_repeat_all_that_was_typed(shared: Browser, url: str, fields: dict[str, str]) -> None:
    refused = shared.http.post(f"{url}/steer", data=fields)
    assert refused.status_code == 422
    assert "x" * 30 in refused.text
    assert "x" * 100 not in refused.text


@pytest.mark.parametrize("query", [f"add={LONG}", f"concept={LONG}", f"heat=concept:{LONG}", f"steer={LONG}"])
def test_an_address_holds_no_name_that_nothing_has(shared: Browser, url: str, query: str) -> None:
    refused = shared.http.get(f"{url}?{query}")
    assert refused.status_code == 422
    assert len(refused.text) < 10_000


def test_a_refused_form_leads_back_to_where_it_was_sent(shared: Browser, url: str) -> None:
    here, wrong = str(shared.http.base_url).rstrip("/"), {"concept:nobody": "1"}

    def link(referer: str) -> str:
        refused = shared.http.post(f"{url}/steer", data=wrong, headers={"referer": referer} if referer else {})
        assert refused.status_code == 422
        return refused.text.partition('<section id="error"')[2].partition('href="')[2].partition('"')[0]

    assert link("") == url
    assert link(f"{here}{url}?span=0-1&rows=5") == f"{url}?span=0-1&amp;rows=5"
    assert link("http://elsewhere.example/trap") == url
    assert link(f"{here}//elsewhere.example/") == url


def test_an_sae_lies_below_the_folder_it_was_opened_from(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path / "data", sae_dirs=(tmp_path / "more",))
    assert saeplaces.shown(settings, str(tmp_path.resolve() / "data" / "saes" / "mine")) == "mine"
    assert saeplaces.shown(settings, str(tmp_path.resolve() / "more" / "a" / "b")) == "a/b"
    assert saeplaces.shown(settings, "/elsewhere/mine") == "/elsewhere/mine"
    assert saeplaces.shown(settings, "shipped with the built-in model") == "shipped with the built-in model"
