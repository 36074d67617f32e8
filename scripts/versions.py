"""`make versions`: do two minor versions of transformers give the same answers and the same ranking?

1. A scratch environment is made (removed afterwards) that sees every package of this one, and pip installs the other
   version of transformers into it. By default that is the newest other minor version which pyproject.toml permits, or
   where it permits none the newest one below; `--version` takes another.
2. The same questions, the first of each sample picture, are asked of the built-in model under both: method
   `gradient`, float32, on the CPU.
3. Compared, question by question: the answer's ids; the order of the first 20 neurons (those that change place are
   named); the largest difference of any neuron's score, relative to the largest score.

Exit status 1 where an answer differs, where a score differs by more than the noise band, or where neurons change place
that stand further apart than it. The band is what a batch of two makes of the same scores (`LocalEngine.noise`), and at
least the 1e-4 to which METHODS.md takes float32 identities to hold.

    python scripts/versions.py [--version 5.23.0] [--questions 14]

It needs pip and what pip is configured to reach, nothing else.
"""

import argparse
import json
import re
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
import venv
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
TOP = 20
FLOOR = 1e-4


def ask_all(file: Path, limit: int) -> None:
    """Ask under the installed version; what was answered goes to `file` as JSON."""
    sys.path.insert(0, str(ROOT))
    import numpy as np
    import torch
    import transformers
    from PIL import Image

    from engine.builtin import samples
    from engine.contract import Question, Target
    from engine.local import load_engine

    torch.set_num_threads(1)
    engine = load_engine(device="cpu", dtype="float32")
    asked: list[dict[str, Any]] = []
    pairs = [(entry["file"], entry["questions"][0]["question"]) for entry in samples.load()]
    for name, text in pairs[:limit]:
        with Image.open(samples.SAMPLES / name) as picture:
            question = Question(np.asarray(picture.convert("RGB")), text)
        found = engine.ask(question)
        ids = [token.id for token in found.answer.tokens]
        band = max(band.difference for band in engine.noise(question, ids, Target()) if "batch" in band.against)
        asked.append(
            {
                "question": f"{name}: {text}",
                "answer": found.answer.text,
                "ids": ids,
                "band": band,
                "scores": found.attribution.scores.tolist(),
            }
        )
    file.write_text(json.dumps({"version": transformers.__version__, "asked": asked}))


def compare(one: dict[str, Any], other: dict[str, Any]) -> tuple[list[str], float, list[str]]:
    """(what disagrees beyond the noise band, largest relative difference, neurons of the first 20 that change place)
    for one question under two versions."""
    import numpy as np

    if one["ids"] != other["ids"]:
        return [f"answers differ: {one['answer']!r} and {other['answer']!r}"], float("nan"), []
    before, after = (np.asarray(asked["scores"], np.float64) for asked in (one, other))
    largest, band = np.abs(before).max(), max(FLOOR, one["band"], other["band"])
    difference = float(np.abs(after - before).max() / largest)
    ranked = [np.argsort(-np.abs(scores).ravel(), kind="stable")[:TOP] for scores in (before, after)]
    moved = [(a, b) for a, b in zip(*ranked, strict=True) if a != b]
    magnitude = np.abs(before).ravel() / largest
    apart = [(a, b) for a, b in moved if abs(magnitude[a] - magnitude[b]) > 2 * band]
    wrong = [f"scores differ by {difference:.1e}, the noise band is {band:.1e}"] if difference > band else []
    if apart:
        wrong.append("neurons change place that stand further apart than the noise band")
    width = before.shape[1]
    return wrong, difference, sorted({f"text.{n // width}.{n % width}" for pair in moved for n in pair})


def choose(installed: str, available: list[str], permitted: str) -> str:
    """The newest available version of another minor than `installed`'s, of the same major: within `permitted` (a
    requirement like `>=5.24,<6`) where there is one, else the newest that is lower."""
    from packaging.specifiers import SpecifierSet
    from packaging.version import Version

    own = Version(installed)
    others = [Version(text) for text in available]
    others = sorted(v for v in others if v.major == own.major and v.minor != own.minor and not v.is_prerelease)
    inside = [version for version in others if version in SpecifierSet(permitted)]
    lower = [version for version in others if version < own]
    if not inside and not lower:
        sys.exit(f"There is no other minor version of transformers {own.major} to compare with {installed}.")
    return str((inside or lower)[-1])


def requirement() -> str:
    """pyproject.toml's range of transformers."""
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    return next(text.removeprefix("transformers") for text in wanted if text.startswith("transformers"))


def pip(*arguments: str) -> str:
    """pip's output; ends the program with pip's own words where it fails."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 -- pip, by this interpreter
    if done.returncode:
        sys.exit(f"pip {' '.join(arguments)} failed:\n{done.stderr.strip()}")
    return done.stdout


def scratch(folder: Path, version: str) -> Path:
    """The Python of an environment that has this version of transformers, and beside it what this one has."""
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    site = next(folder.glob("lib/python*/site-packages"))
    (site / "beside.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    pip("--python", str(python), "install", "-q", f"transformers=={version}")
    return python


def main() -> int:
    parser = argparse.ArgumentParser(description="Two minor versions of transformers, the same ranking?")
    parser.add_argument("--version", help="the other version (the newest other minor one that is permitted)")
    parser.add_argument("--questions", type=int, default=14)
    parser.add_argument("--answers", type=Path, help=argparse.SUPPRESS)  # what each environment is run with
    options = parser.parse_args()
    if options.answers:
        ask_all(options.answers, options.questions)
        return 0
    import transformers

    installed, permitted = transformers.__version__, requirement()
    version = options.version
    if version is None:
        listed = re.search(r"Available versions: (.*)", pip("index", "versions", "transformers"))
        version = choose(installed, listed[1].split(", ") if listed else [], permitted)
    told: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        for python in (Path(sys.executable), scratch(Path(name) / "other", version)):
            file = Path(name) / "answers.json"
            arguments = ["--answers", str(file), "--questions", str(options.questions)]
            subprocess.run([python, __file__, *arguments], check=True)  # noqa: S603 -- this file, by an interpreter made here
            told.append(json.loads(file.read_text()))
    one, other = told
    print(f"transformers {one['version']} and {other['version']} (pyproject.toml permits {permitted})")
    found = [(a["question"], *compare(a, b)) for a, b in zip(one["asked"], other["asked"], strict=True)]
    for question, wrong, difference, moved in found:
        words = [f"{difference:.1e}", *([f"change place: {', '.join(moved)}"] if moved else []), *wrong]
        print(f"  {'✗' if wrong else '✓'} {question}  {'; '.join(words)}")
    wrong_ones = sum(bool(wrong) for _, wrong, _, _ in found)
    worst, band = max(difference for _, _, difference, _ in found), max(a["band"] for a in one["asked"])
    same = sum(not moved for _, _, _, moved in found)
    print(
        f"{len(found)} questions: {wrong_ones} disagree; same first {TOP} neurons in the same order in {same}; largest "
        f"relative score difference {worst:.1e} (a batch of two makes {band:.1e})"
    )
    return 1 if wrong_ones else 0


if __name__ == "__main__":
    sys.exit(main())
