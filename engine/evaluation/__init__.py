"""Does turning concepts make a model answer better? The protocol of METHODS.md §3. Torch-free; it drives any `Engine`.

How to use it (everything named here is given on by this package):

    from engine import evaluation

    settings = evaluation.Settings(set="builtin", kinds=("name", "side"), limit=100, seed=0)
    settings.check()                                    # RequestError or UnknownName: limit, value, remedy
    found = evaluation.builtin_items(settings)          # ItemSet; or evaluation.file_items(...) for a file set
    plan = evaluation.estimate(settings, found.items)
    plan.answers                                        # how many answers will be generated at most
    result = evaluation.run(engine, found.items, settings, on_progress=…, on_part=…, done=parts, cancelled=…)

- `run` blocks and must be called from the engine's thread. `on_progress(done, all)` counts generated answers; `all` is
  the estimate and falls where a choice is "none". It is called, with nothing on the model, between two batches, before
  each picture and each part: whoever waits may use the engine there. It raises Cancelled between batches.
- **Resuming**: `on_part(key, value)` hands over each finished part (a JSON value; a few kB). Keep them by key, and give
  them back as `done` (a mapping): they are not computed again and the result is equal. Parts belong to one `settings`
  *and* one model revision; `evaluation.parts_key(settings, engine.info(), engine.library().revision)` names
  them (and the library): keep the parts under it.
- `result` is an `Evaluation`; `to_json(result)` is its JSON, `evaluation_from_json` the way back. `result.kinds` has
  one row (`KindResult`) for each kind × condition × level (LEVELS: over what the setting was chosen), `result.totals`
  rows over several cells (`kind` or `condition` = "all", "hard"). `table(result)` gives lines of text, `to_csv(result)`
  a CSV.
- **File sets**: `file_items(settings, format, files, pictures)`: `format` of FORMATS ("vqa": questions and annotations;
  "gqa": questions; "pope": JSONL; "squad": JSON; "table": CSV or JSONL), `files` = {file name: bytes} in the order that
  FORMATS says, `pictures` = a `engine.entries.Pictures` (folder or zip). It returns an ItemSet (`bad`: entries with
  number and reason). `file_settings(format, files, settings)` fills `set`, `metric` and `source`: use its settings.
"""

from engine.entries import BadLine
from engine.evaluation.builtin import CONDITIONS, builtin_items
from engine.evaluation.builtin import KINDS as BUILTIN_KINDS
from engine.evaluation.contract import (
    ARMS,
    EASY,
    LAYERS,
    LEVELS,
    MAPS,
    METRICS,
    NONE,
    RULES,
    ArmResult,
    DevRow,
    Difference,
    Evaluation,
    Item,
    ItemSet,
    KindResult,
    Setting,
    Settings,
    evaluation_from_json,
    settings_from_json,
    to_json,
)
from engine.evaluation.estimating import Estimate, estimate
from engine.evaluation.files import FORMATS, Format, decoded, file_items, file_settings
from engine.evaluation.reporting import table, to_csv
from engine.evaluation.running import parts_key, run
from engine.evaluation.squad import is_squad

BUILTIN_CONDITIONS = tuple(CONDITIONS)

__all__ = [
    "ARMS", "BUILTIN_CONDITIONS", "BUILTIN_KINDS", "EASY", "FORMATS", "LAYERS", "LEVELS", "MAPS", "METRICS", "NONE",
    "RULES", "ArmResult", "BadLine", "DevRow", "Difference", "Estimate", "Evaluation", "Format", "Item", "ItemSet",
    "KindResult", "Setting", "Settings", "builtin_items", "decoded", "estimate", "evaluation_from_json", "file_items",
    "file_settings", "is_squad", "parts_key", "run", "settings_from_json", "table", "to_csv", "to_json",
]  # fmt: skip
