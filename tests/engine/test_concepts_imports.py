"""Probes from files: good lines kept, bad ones named; pictures that stay inside (issue: hostile and careless input)."""

import json
import zipfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine import entries
from engine.concepts.imports import Imported, read_captions, read_csv, read_jsonl, read_vqa
from engine.entries import Pictures, inner_name
from engine.errors import RequestError

PNG = b"\x89PNG not really"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "pictures"
    (root / "deep").mkdir(parents=True)
    (root / "a.png").write_bytes(PNG)
    (root / "deep" / "b é.png").write_bytes(PNG + b"b")
    (tmp_path / "secret.png").write_bytes(b"secret")
    (root / "way_out.png").symlink_to(tmp_path / "secret.png")
    return root


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    path = tmp_path / "pictures.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as made:
        made.writestr("a.png", PNG)
        made.writestr("deep/b é.png", PNG + b"b")
        made.writestr("../secret.png", b"secret")
        made.writestr("bomb.png", b"0" * 2**20)
    return path


def reasons(found: Imported) -> dict[int, str]:
    return {bad.line: bad.reason for bad in found.bad}


# Pictures


def test_a_folder_and_a_zip_give_the_same_bytes(folder: Path, archive: Path) -> None:
    for source in (folder, archive):
        pictures = Pictures(source)
        assert pictures.open("a.png") == PNG
        assert pictures.open("./deep/b é.png") == PNG + b"b"
        assert pictures.open("deep\\b é.png") == PNG + b"b"
        with pytest.raises(RequestError, match=r"no picture 'c\.png'"):
            pictures.open("c.png")
        with pytest.raises(RequestError, match="no picture 'deep'"):
            pictures.open("deep")
        pictures.close()


@pytest.mark.parametrize(
    "name", ["../secret.png", "deep/../../secret.png", "/etc/passwd", "C:/x.png", "..\\secret.png", "", "a\0.png"]
)
def test_names_that_lead_out_are_refused(folder: Path, archive: Path, name: str) -> None:
    for source in (folder, archive):
        with pytest.raises(RequestError, match=r"outside|empty or holds"):
            Pictures(source).open(name)


def test_a_link_out_of_the_folder_is_refused(folder: Path) -> None:
    with pytest.raises(RequestError, match="link that leads out"):
        Pictures(folder).open("way_out.png")


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet="a./\\C:\0 ", max_size=12))
def test_whatever_a_name_is_it_stays_inside(name: str) -> None:
    try:
        inner = inner_name(name)
    except RequestError:
        return
    root = Path("/nowhere/pictures")
    assert (root / inner).resolve().is_relative_to(root)


def test_members_that_are_too_large_or_unpack_too_far_are_refused(
    folder: Path, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(RequestError, match="times its size"):
        Pictures(archive).open("bomb.png")
    monkeypatch.setattr(entries, "MAX_PICTURE", 10)
    for source in (folder, archive):
        with pytest.raises(RequestError, match="at most 0 are read"):
            Pictures(source).open("a.png")
    monkeypatch.setattr(entries, "MAX_MEMBERS", 3)
    with pytest.raises(RequestError, match="4 members; at most 3"):
        Pictures(archive)


def test_a_damaged_or_lying_zip_is_refused(archive: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.zip"
    broken.write_bytes(b"PK\x03\x04 no zip")
    for path in (broken, tmp_path / "missing.zip"):
        with pytest.raises(RequestError, match="no folder and no zip"):
            Pictures(path)
    data = bytearray(archive.read_bytes())
    data[data.index(b"a.png") + 8] ^= 0xFF
    archive.write_bytes(bytes(data))
    with pytest.raises(RequestError, match="cannot be read from the zip"):
        Pictures(archive).open("a.png")


# Lines

GOOD = {"question": "what is it?", "answer": "a traffic light"}


def test_a_table_gives_its_good_lines_and_names_the_bad_ones(folder: Path) -> None:
    rows = [
        "Question,answer,picture,says,box",
        "what is it?,a traffic light,a.png,,1 2 30 40",
        '"what, then?","a\nTraffic Light",,,',
        "what is it?,a dog,,,",
        "what is it?,a traffic light,../secret.png,,",
        ",a traffic light,,,",
        "what is it?,a traffic light,a.png,,4 3 2 1",
        "what is it?,a traffic light,,dog,",
        "what is it?,a traffic light",
        "what is it?,a red traffic light,deep/b é.png,red,",
    ]
    found = read_csv("\r\n".join(rows).encode("utf-8-sig"), ["traffic light"], Pictures(folder))
    assert [(p.line, p.picture, p.says, p.box) for p in found.probes] == [
        (2, "a.png", "traffic light", (1, 2, 30, 40)),
        (4, None, "Traffic Light", None),
        (11, "deep/b é.png", "red", None),
    ]
    words = reasons(found)
    assert sorted(words) == [5, 6, 7, 8, 9, 10]
    assert "none of the concept's surface forms ('traffic light')" in words[5]
    assert "outside the pictures" in words[6]
    assert words[7] == "'question' is missing."
    assert "left < right" in words[8]
    assert "does not contain 'dog'" in words[9]
    assert "not as many fields" in words[10]


def test_line_breaks_inside_an_answer_are_one_line_of_the_table() -> None:
    found = read_csv(b'question;answer\n"what is\nit?";"a dog"\nwhy?;a cat\n', ["dog"])
    assert [(p.line, p.question) for p in found.probes] == [(3, "what is\nit?")]
    assert list(reasons(found)) == [4]


def test_a_file_that_is_no_table_is_refused_as_a_whole() -> None:
    with pytest.raises(RequestError, match="names picture, text"):
        read_csv(b"picture,text\na,b\n", ["x"])
    with pytest.raises(RequestError, match="names nothing"):
        read_csv(b"", ["x"])
    with pytest.raises(RequestError, match="not UTF-8"):
        read_csv(b"question,answer\n\xff\xfe,x\n", ["x"])


def test_json_lines_likewise(archive: Path) -> None:
    lines = [
        json.dumps({**GOOD, "image": "a.png", "box": [0, 0, 5, 5]}),
        "",
        "{not json",
        "[1, 2]",
        json.dumps({**GOOD, "answer": None}),
        json.dumps({**GOOD, "answer": ["a"]}),
        json.dumps({**GOOD, "box": [1, 2, 3]}),
        json.dumps({**GOOD, "box": [1, 2, float("nan"), 4]}),
        json.dumps({**GOOD, "question": "x" * 2001}),
        json.dumps({"question": "how many?", "answer": 2, "concept": "2"}),
        "[" * 100_000,
    ]
    found = read_jsonl("\n".join(lines).encode(), ["traffic light", "2"], Pictures(archive))
    assert [(p.line, p.picture, p.answer, p.says) for p in found.probes] == [
        (1, "a.png", "a traffic light", "traffic light"),
        (10, None, "2", "2"),
    ]
    assert sorted(reasons(found)) == [3, 4, 5, 6, 7, 8, 9, 11]


def test_without_forms_the_lines_concept_or_the_whole_answer_is_what_is_said() -> None:
    lines = [{**GOOD, "concept": "light"}, GOOD, {**GOOD, "concept": "dog"}]
    found = read_jsonl("\n".join(json.dumps(line) for line in lines).encode())
    assert [(p.says, p.concept) for p in found.probes] == [("light", "light"), ("a traffic light", "")]
    assert "surface forms ('dog')" in reasons(found)[3]


def test_a_picture_needs_a_place_to_look() -> None:
    found = read_jsonl(json.dumps({**GOOD, "picture": "a.png"}).encode(), ["light"])
    assert "no folder or zip" in reasons(found)[1]


def test_a_file_without_end_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entries, "MAX_LINES", 3)
    found = read_jsonl(b"\n".join([json.dumps(GOOD).encode()] * 5), ["light"])
    assert len(found.probes) == 3
    assert "Only the first 3 lines" in reasons(found)[4]


# Published shapes


def test_vqa_files_give_the_questions_that_say_the_concept(folder: Path) -> None:
    (folder / "000000000007.jpg").write_bytes(PNG)
    asked = [{"question_id": k, "image_id": 7, "question": f"question {k}?"} for k in range(5)]
    asked += [{"question_id": 9, "image_id": 8, "question": "lost picture?"}, {"image_id": 7}, "no entry"]  # type: ignore[list-item]
    answered = [
        {"question_id": 0, "multiple_choice_answer": "traffic light"},
        {"question_id": 1, "multiple_choice_answer": "dog"},
        {
            "question_id": 2,
            "answers": [{"answer": "a traffic light"}, {"answer": "dog"}, {"answer": "a traffic light"}],
        },
        {"question_id": 3, "answers": []},
        {"question_id": 9, "multiple_choice_answer": "traffic light"},
    ]
    found = read_vqa(
        json.dumps({"questions": asked}).encode(),
        json.dumps({"annotations": answered}).encode(),
        ["traffic light"],
        Pictures(folder),
    )
    assert [(p.line, p.picture, p.answer) for p in found.probes] == [
        (1, "000000000007.jpg", "traffic light"),
        (3, "000000000007.jpg", "a traffic light"),
    ]
    words = reasons(found)
    assert sorted(words) == [4, 5, 6, 7, 8]
    assert words[4] == "The annotation has no answer."
    assert words[5] == "No annotation has the question_id 4."
    assert "no picture '000000000008.jpg'" in words[6]
    with pytest.raises(RequestError, match="list 'annotations'"):
        read_vqa(b'{"questions": []}', b"[]", ["x"])
    with pytest.raises(RequestError, match="no JSON"):
        read_vqa(b"{", b"{}", ["x"])


def test_captions_give_the_ones_that_say_the_concept(folder: Path) -> None:
    file = {
        "images": [{"id": 1, "file_name": "a.png"}, {"id": 2, "file_name": "../secret.png"}, {"id": "x"}, 5],
        "annotations": [
            {"image_id": 1, "caption": "A Dog and a dog."},
            {"image_id": 1, "caption": "a dogged cat"},
            {"image_id": 2, "caption": "a dog"},
            {"image_id": 3, "caption": "a dog"},
            {"image_id": 1},
            None,
        ],
    }
    found = read_captions(json.dumps(file).encode(), ["dog"], Pictures(folder))
    assert [(p.line, p.picture, p.question, p.says) for p in found.probes] == [
        (1, "a.png", "describe the picture.", "dog")
    ]
    assert sorted(reasons(found)) == [3, 4, 5, 6]


def test_broken_zips_and_tables_are_refused_in_words(tmp_path: Path) -> None:
    path = tmp_path / "broken.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("a.png", PNG * 50)
    whole = path.read_bytes()
    path.write_bytes(whole[:40] + b"\xff" * 8 + whole[48:])  # amid the compressed bytes
    with pytest.raises(RequestError, match="cannot be read from the zip"):
        Pictures(path).open("a.png")
    path.write_bytes(whole.replace(b"PK\x01\x02\x14\x03\x14", b"PK\x01\x02\x14\x03\xff"))  # a version to come
    with pytest.raises(RequestError, match="no zip of pictures"):
        Pictures(path)
    with pytest.raises(RequestError, match="The first line is no line of a table"):
        read_csv(b"x" * 200_000 + b",answer\n")
