"""Who is let in, and what pages may do."""

import pytest

from tests.app.conftest import Browser


@pytest.mark.parametrize("path", ["/", "/nowhere", "/static/app.css", "/healthz"])
def test_every_response_has_the_policy(shared: Browser, path: str) -> None:
    headers = shared.http.get(path).headers
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Referrer-Policy"] == "same-origin"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 303),
        ({"Sec-Fetch-Site": "same-origin"}, 303),
        ({"Sec-Fetch-Site": "none"}, 303),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Origin": "http://localhost"}, 303),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
    ],
)
def test_other_sites_cannot_post(shared: Browser, headers: dict[str, str], status: int) -> None:
    response = shared.http.post("/runs", data={"question": "Who?"}, headers=headers, follow_redirects=False)
    assert response.status_code == status


@pytest.mark.parametrize(
    ("host", "status"),
    [("localhost:8000", 200), ("127.0.0.1", 200), ("[::1]:80", 200), ("192.168.1.7:8000", 200),
     ("evil.example", 421), ("localhost.evil.example", 421), ("", 421), ("[", 421)],
)  # fmt: skip
def test_foreign_names_are_not_served(shared: Browser, host: str, status: int) -> None:
    assert shared.http.get("/", headers={"Host": host}).status_code == status


def test_pages_run_no_inline_script(shared: Browser) -> None:
    for path in ("/", "/runs", "/concepts", "/models", shared.ask()):
        text = shared.http.get(path).text
        assert " onclick=" not in text
        assert "<style" not in text
        assert " style=" not in text
        for opening in text.split("<script")[1:]:
            assert " src=" in opening.split(">")[0] or "application/json" in opening.split(">")[0]


@pytest.mark.parametrize("name", ["..%2f..%2fpyproject.toml", "../pyproject.toml", "%2e%2e/pyproject.toml"])
def test_only_static_files_are_static(shared: Browser, name: str) -> None:
    assert shared.http.get(f"/static/{name}").status_code == 404


def test_static_files_are_kept_under_their_version(shared: Browser) -> None:
    versioned = shared.services.renderer.static_url("app.css")
    assert "immutable" in shared.http.get(versioned).headers["Cache-Control"]
    assert shared.http.get("/static/app.css").headers["Cache-Control"] == "no-cache"


@pytest.mark.parametrize("name", ["v-x/../../pyproject.toml", "v-x/..%2f..%2fpyproject.toml", "v-x//etc/hostname"])
def test_the_version_opens_no_way_out_of_static(shared: Browser, name: str) -> None:
    assert shared.http.get(f"/static/{name}").status_code == 404
