"""Ship a checkpoint:  python -m engine.builtin.export CHECKPOINT [--base DIR] [--out DIR]

The average weights of the checkpoint become a Hugging Face LLaVA folder in float16, loadable offline by the Auto
classes. The tower and the rest are two shards, so that a retrained decoder leaves the tower's file as it was, byte
for byte. The folder is written beside the old one and then put in its place; the old model card goes with it: run
`evaluate --card` next."""

import argparse
import json
import shutil
from pathlib import Path
from typing import Final

import torch
from safetensors.torch import load_file, save_file

from engine.builtin import architecture, tokenizer
from engine.builtin.train import SHIPPED

LIMIT: Final = 50_000_000
"""Bytes that the folder may have."""
SHARDS: Final = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


def export(checkpoint: Path, base: Path = SHIPPED, out: Path = SHIPPED) -> Path:
    """Write the checkpoint's model to `out`, with the tower and the tokenizer of the folder `base`; return `out`."""
    state = torch.load(checkpoint, weights_only=True)
    tok = tokenizer.load(base)
    model = architecture.from_folder(base)
    size = architecture.Size(**state["size"])
    if size != architecture.size_of(model):
        model = architecture.fresh(size, model)
    _, unexpected = model.load_state_dict(state["average"], strict=False)
    if unexpected:
        raise ValueError(f"{checkpoint} holds weights that the model lacks: {', '.join(unexpected[:3])}")
    architecture.fold(model, architecture.Standard(state["mean"], state["scale"]))
    new = out.with_name(out.name + ".new")
    shutil.rmtree(new, ignore_errors=True)
    model.half().save_pretrained(new)
    split(new)
    architecture.processor(tok).save_pretrained(new)
    total = sum(file.stat().st_size for file in new.iterdir())
    if total > LIMIT:
        raise ValueError(f"{new} has {total} bytes; at most {LIMIT} may be shipped: make the decoder smaller")
    old = out.with_name(out.name + ".old")
    shutil.rmtree(old, ignore_errors=True)
    if out.exists():
        out.rename(old)
    new.rename(out)
    shutil.rmtree(old, ignore_errors=True)
    return out


def split(folder: Path) -> None:
    """Turn model.safetensors into two shards, the tower and the rest, with an index."""
    whole = folder / "model.safetensors"
    tensors = load_file(whole)
    homes = {name: SHARDS[0 if "vision_tower" in name else 1] for name in sorted(tensors)}
    for shard in SHARDS:
        part = {name: tensors[name] for name, home in homes.items() if home == shard}
        save_file(part, folder / shard, metadata={"format": "pt"})
        (folder / shard).chmod(0o644)
    total = sum(tensor.nbytes for tensor in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": homes}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n", encoding="utf-8")
    whole.unlink()


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument(
        "--base", type=Path, default=SHIPPED, help="model folder that gives the tower and the tokenizer"
    )
    parser.add_argument("--out", type=Path, default=SHIPPED)
    print(export(**vars(parser.parse_args())))


if __name__ == "__main__":
    main()
