"""What tests need of the machine: a browser, a PostgreSQL, and one way to say that something is not there."""

import contextlib
import os
import pathlib
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from typing import NoReturn

import pytest

ROOT = pathlib.Path(__file__).parent.parent

CHROMIUM_FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
)
"""For a browser that runs in a container, as root, and asks nothing of the network."""


def missing(what: str) -> NoReturn:
    """Skip the test because `what` is not installed — or fail it under CI, where a skipped check is no check."""
    if os.environ.get("CI"):
        pytest.fail(f"{what} is missing, and under CI nothing may be skipped for that", pytrace=False)
    pytest.skip(f"{what} is missing: `make test` installs it where apt is permitted")


def find_chromium() -> str | None:
    """A Chromium to drive: $SFUMATO_CHROMIUM, one on the path, or the one that Playwright downloaded."""
    named = os.environ.get("SFUMATO_CHROMIUM")
    if named:
        return named
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if found := shutil.which(name):
            return found
    store = pathlib.Path(os.environ.get("PLAYWRIGHT_BROWSERS_PATH", pathlib.Path.home() / ".cache" / "ms-playwright"))
    downloaded = sorted(store.glob("chromium-*/chrome-linux*/chrome"))
    return str(downloaded[-1]) if downloaded else None


def find_postgres() -> pathlib.Path | None:
    """The folder of PostgreSQL's programs (Debian keeps them off the path); the newest version wins."""
    if found := shutil.which("initdb"):
        return pathlib.Path(found).parent
    folders = pathlib.Path("/usr/lib/postgresql").glob("*/bin/initdb")
    newest = sorted(folders, key=lambda path: int(path.parts[-3]) if path.parts[-3].isdigit() else 0)
    return newest[-1].parent if newest else None


@contextlib.contextmanager
def postgres_cluster(programs: pathlib.Path) -> Iterator[str]:
    """A throwaway cluster that listens on a Unix socket only; yields its URL, to which a database's name is added.

    PostgreSQL refuses to run as root: then it runs as the user `postgres`, which its package creates."""
    # Not pytest's tmp_path: a socket's path may have 107 bytes, and `postgres` may not enter root's folders.
    folder = pathlib.Path(tempfile.mkdtemp(prefix="sfumato-pg-", dir="/tmp"))
    user = "postgres" if os.geteuid() == 0 else None
    groups: list[int] | None = [] if user else None
    if user:
        shutil.chown(folder, user, user)

    def call(program: str, *arguments: str) -> None:
        # Output goes to a file: the server inherits the handles, and a pipe would stay open with it.
        with (folder / f"{program}.out").open("w+") as output:
            done = subprocess.run(
                [programs / program, *arguments],
                cwd=folder,
                user=user,
                group=user,
                extra_groups=groups,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=60,
                check=False,
            )
            if done.returncode:
                output.seek(0)
                raise RuntimeError(f"{program} ended with {done.returncode}:\n{output.read()}")

    data = str(folder / "data")
    try:
        call("initdb", "-D", data, "-U", "postgres", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync")
        options = f"-k {folder} -c listen_addresses= -c fsync=off -c full_page_writes=off"
        call("pg_ctl", "-D", data, "-l", str(folder / "server.log"), "-o", options, "-w", "start")
        try:
            yield f"postgresql+psycopg://postgres@/{{database}}?host={folder}"
        finally:
            call("pg_ctl", "-D", data, "-m", "immediate", "-w", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
