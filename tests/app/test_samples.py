"""The sample pictures on the first page."""

import json
from pathlib import Path

import pytest

from app import pictures
from tests.app.conftest import Browser


def test_a_sample_is_offered_and_asked_about(shared: Browser) -> None:
    sample = next(iter(pictures.samples().values()))
    page = shared.http.get("/").text
    assert f'src="/samples/{sample.name}"' in page
    assert sample.questions[0] in page
    assert shared.http.get(f"/samples/{sample.name}").status_code == 200
    chosen = shared.http.get("/", params={"sample": sample.name, "question": sample.questions[0]}).text
    assert f'value="{sample.name}" checked' in chosen
    asked = {"question": sample.questions[0], "sample": sample.name}
    response = shared.http.post("/runs", data=asked, follow_redirects=False)
    assert response.status_code == 303
    picture = shared.settled(response.headers["location"])["provenance"]["picture"]
    assert picture in pictures.sample_hashes(shared.services.limits)


def test_a_file_wins_over_a_sample(shared: Browser, request: pytest.FixtureRequest) -> None:
    sample = next(iter(pictures.samples()))
    upload = (request.getfixturevalue("pictures") / "ok.png").read_bytes()
    response = shared.http.post(
        "/runs", data={"question": "What?", "sample": sample}, files={"picture": ("a.png", upload)},
        follow_redirects=False,
    )  # fmt: skip
    assert shared.settled(response.headers["location"])["provenance"]["picture_size"] == [320, 240]


def test_an_unknown_sample_is_refused(shared: Browser) -> None:
    response = shared.http.post("/runs", data={"question": "What?", "sample": "../../secret"})
    assert response.status_code == 422
    assert "no sample picture" in response.text


def test_without_samples_the_page_offers_none(shared: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "SAMPLES", tmp_path)
    pictures.samples.cache_clear()
    try:
        assert pictures.samples() == {}
        assert shared.http.get("/").status_code == 200
        (tmp_path / "samples.json").write_text(json.dumps([{"name": "gone", "file": "gone.png"}]))
        pictures.samples.cache_clear()
        assert pictures.samples() == {}, "a picture that is not there is not offered"
    finally:
        pictures.samples.cache_clear()
