"""`python -m engine.evaluation --set builtin|FILE [--kinds …] [--limit N] [--seed S] [--json]`: measure, and show.

A file set also takes `--format` (vqa, gqa, pope or table) and `--pictures` (a folder or zip); VQAv2 its second file by
`--annotations`.

Finished parts are kept in `--work`, so a stopped evaluation goes on where it was, with an equal result.
"""

import argparse
import dataclasses
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from engine.entries import Pictures
from engine.evaluation import (
    FORMATS,
    ItemSet,
    Settings,
    builtin_items,
    estimate,
    file_items,
    file_settings,
    parts_key,
    run,
    table,
    to_json,
)


class Parts:
    """Parts of one evaluation in a file of JSON lines (key, value)."""

    def __init__(self, folder: Path, key: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / f"{key}.jsonl"
        self.known: dict[str, Any] = {}
        if self.path.is_file():
            for line in self.path.read_text("utf-8").splitlines():
                try:
                    name, value = json.loads(line)
                except ValueError:  # cut short when it was stopped
                    continue
                self.known[name] = value

    def keep(self, name: str, value: Any) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write("\n" * (self.path.stat().st_size > 0) + json.dumps([name, value]))


def words(text: str) -> tuple[str, ...]:
    """A list with commas."""
    return tuple(word.strip() for word in text.split(",") if word.strip())


def numbers(text: str) -> tuple[float, ...]:
    return tuple(float(word) for word in words(text))


def parser() -> argparse.ArgumentParser:
    plain = Settings()
    made = argparse.ArgumentParser(prog="python -m engine.evaluation", description="Does modulation help on a set?")
    made.add_argument("--set", default="builtin", help="builtin, or a file of questions")
    made.add_argument("--format", default="table", choices=tuple(FORMATS), help="of a file")
    made.add_argument("--annotations", type=Path, help="VQAv2's second file")
    made.add_argument("--pictures", type=Path, help="a file set's folder or zip of pictures")
    for name in ("kinds", "conditions", "rules", "positions", "layers", "maps", "levels"):
        made.add_argument(f"--{name}", type=words, default=getattr(plain, name), help="a list with commas")
    made.add_argument("--lambdas", type=numbers, default=plain.lambdas, help="a list with commas")
    for name in ("limit", "dev", "screen", "errors", "seed", "keep", "build", "control_probes", "max_new_tokens"):
        made.add_argument(f"--{name.replace('_', '-')}", type=int, default=getattr(plain, name))
    made.add_argument("--margin", type=float, default=plain.margin)
    made.add_argument("--json", action="store_true", help="print JSON instead of a table")
    made.add_argument("--work", type=Path, default=Path("var/evaluation"), help="where finished parts are kept")
    made.add_argument("--model", default="builtin", help="builtin, a folder or a hub name")
    made.add_argument("--threads", type=int, default=1)
    return made


def items_of(options: dict[str, Any], settings: Settings) -> tuple[ItemSet, Settings]:
    """The questions, and the settings with what a file adds to them."""
    if options["set"] == "builtin":
        return builtin_items(settings), settings
    paths = [path for path in (Path(options["set"]), options["annotations"]) if path]
    files = {path.name: path.read_bytes() for path in paths}
    settings = file_settings(options["format"], files, settings)
    pictures = Pictures(options["pictures"]) if options["pictures"] else None
    return file_items(settings, options["format"], files, pictures), settings


def main() -> None:
    options = vars(parser().parse_args())
    known = {field.name for field in dataclasses.fields(Settings)}
    settings = Settings(**{name: value for name, value in options.items() if name in known})
    settings.check()
    found, settings = items_of(options, settings)
    for bad in found.bad:
        sys.stderr.write(f"entry {bad.line} left out: {bad.reason}\n")
    os.environ.setdefault("OMP_NUM_THREADS", str(options["threads"]))
    import torch

    from engine.local import load_engine

    torch.set_num_threads(options["threads"])
    engine = load_engine(options["model"])
    parts = Parts(options["work"], parts_key(settings, engine.info(), engine.library().revision))
    sys.stderr.write(f"{estimate(settings, found.items)}\nparts in {parts.path}\n")
    began, last = time.monotonic(), 0.0

    def tell(done: int, whole: int) -> None:
        nonlocal last
        if time.monotonic() - last > 10:
            last = time.monotonic()
            sys.stderr.write(f"{done}/{whole} answers, {last - began:.0f} s\n")

    result = run(engine, found.items, settings, tell, parts.keep, parts.known)
    shown = json.dumps(to_json(result), indent=1, ensure_ascii=False) if options["json"] else table(result)
    sys.stdout.write(shown + "\n")
    sys.stderr.write(f"{time.monotonic() - began:.0f} s\n")


if __name__ == "__main__":
    main()
