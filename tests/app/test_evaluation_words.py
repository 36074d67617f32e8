"""What a report on a person's files says: numbers, how to get them again, and what was left out."""

import io
import json
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from app import questionsets
from app.tables import QuestionSet
from app.views import evaluated
from engine.contract import evaluation
from tests.app.conftest import serving
from tests.app.turning import HALF, Turning, bring, over, start


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0.0"), (-0.0, "0.0"), (0.0004, "0.0"), (-0.0004, "0.0"), (0.05, "+5.0"), (-0.051, "−5.1")],
)
def test_nothing_has_no_sign(value: float, text: str) -> None:
    assert evaluated.points(value) == text


def test_a_gain_that_mcnemar_does_not_see_is_said_to_be_thin() -> None:
    arms = {arm: evaluation.ArmResult(0.5, 0.4, 0.6, 60) for arm in evaluation.ARMS}

    def headline(p: float) -> str:
        gain = evaluation.Difference(0.1, 0.01, 0.2, p, 9, 3)
        row = evaluation.KindResult(
            "all", "all", "cell", 60, evaluation.Setting("kind", 1.0), (), arms, gain, gain, gain
        )
        made = evaluation.Evaluation(evaluation.Settings(set="mine.csv"), {}, (row,), ())
        return evaluated.headline(made)

    assert "McNemar" in headline(0.064)
    assert "McNemar" not in headline(0.049)


def test_numbers_count_entries_of_json_and_lines_of_the_rest() -> None:
    words = {form: questionsets.entry_word(QuestionSet(format=form)) for form in ("vqa", "gqa", "pope", "table")}
    assert words == {"vqa": "entry", "gqa": "entry", "pope": "line", "table": "line"}


def test_a_report_on_files_says_how_it_is_made_again_anywhere(tmp_path: Path) -> None:
    """Here by the set's hash; with another data folder by its files, with pictures only where it has some."""
    picture = io.BytesIO()
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(picture, "PNG")
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("pictures/a.png", picture.getvalue())
    with serving(tmp_path, Turning) as browser:
        plain = bring(browser)
        url = start(browser, set=plain, **HALF)
        found = over(browser, url)
        page = browser.http.get(url).text
        how = "--kinds object --limit 20 --dev 16 --seed 0 --model fake"
        assert found["command"] == f"sfumato evaluate --set {plain[:16]} {how}"
        assert found["command"] in page
        assert f"sfumato evaluate --set things.jsonl {how}" in page
        assert "FOLDER_OR_ZIP" not in page
        assert "all conditions" not in page
        assert "SHA-256 of things.jsonl" in page
        disposition = browser.http.get(f"{url}.csv").headers["content-disposition"]
        assert disposition == f'attachment; filename="evaluation-{found["id"]}.csv"'
        lines = [
            json.dumps({"question": f"Is thing {k} a lemon?", "answer": "lemon", "picture": "a.png"} | (
                {} if k % 2 else {"picture": ""}))
            for k in range(80)
        ]  # fmt: skip
        seen = bring(browser, "\n".join(lines).encode(), "seen.jsonl", pictures=("p.zip", packed.getvalue()))
        page = browser.http.get(start(browser, set=seen, limit="5", dev="5")).text
        assert "--set seen.jsonl --pictures FOLDER_OR_ZIP --limit 5" in page
