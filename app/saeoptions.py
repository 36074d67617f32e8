"""What the commands of `sfumato sae` share: which SAE is meant, which variant of influence, and how they talk."""

import argparse
import dataclasses
import json
import sys
from typing import Any

from engine.contract import Engine, RequestError, saes

Options = argparse.Namespace
TOLD_EVERY = 5.0
"""Seconds between two lines about long work."""


def attaching(command: argparse.ArgumentParser) -> None:
    command.add_argument("--attach", action="append", default=[], metavar="PATH", help="also this one; repeatable")
    command.add_argument("--layer", type=int, help="of those, where their files do not say it")
    command.add_argument("--site", choices=saes.SITES, help="of those, where their files do not say it")


def variant(command: argparse.ArgumentParser) -> None:
    """Options of saes.Settings."""
    command.add_argument("--sae", help="name, id, folder or hub name (the first that is listed)")
    command.add_argument("--of", choices=saes.OF, help="the whole answer, or its first token (answer)")
    command.add_argument("--quantity", choices=saes.QUANTITIES, help="of it (logprob)")
    command.add_argument(
        "--positive", choices=saes.POSITIVE, help="positive part of each entry, or of the mean (entry)"
    )
    command.add_argument("--drop-error", action="store_true", help="let Ẑ alone go on in place of Z")
    command.add_argument("--bos", action="store_true", help="the SAE also stands at the beginning of sequence")


def settings_of(options: Options) -> saes.Settings:
    given = {name: value for name in ("of", "quantity", "positive") if (value := getattr(options, name))}
    return dataclasses.replace(saes.DEFAULT, **given, keep_error=not options.drop_error, bos=options.bos)


def chosen(engine: Engine, options: Options) -> saes.SaeInfo:
    """The one that is meant by name or id, or attached from a folder or hub; else the last attached, or the first."""
    known = engine.saes()
    wanted = options.sae
    if wanted is None:
        if not known:
            raise RequestError("No SAE stands on this model. Give one with --sae, or train one: sfumato sae train.")
        return known[-1] if options.attach else known[0]
    found = next((info for info in known if wanted in (info.name, info.id)), None)
    return found or engine.attach_sae(wanted, options.layer, options.site)


def tell(words: str) -> None:
    print(f"sfumato: {words}", file=sys.stderr, flush=True)


def print_json(told: Any) -> None:
    print(json.dumps(told, ensure_ascii=False, allow_nan=False))
