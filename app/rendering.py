"""Templates. A page's template gets the fields of its context, a fragment's template its context under its own name;
a variable that no context declares is an error when it is rendered."""

import dataclasses
import functools
import hashlib
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from app import contexts

VERSION_MARK = "v-"
HOME = Path(__file__).resolve().parent.parent
TEMPLATES, STATIC = HOME / "templates", HOME / "static"

PAGES: dict[str, type[Any]] = {
    "ask/index.html": contexts.AskPage,
    "runs/index.html": contexts.RunsPage,
    "runs/show.html": contexts.RunPage,
    "concepts/index.html": contexts.ConceptsPage,
    "concepts/show.html": contexts.ConceptPage,
    "concepts/similar.html": contexts.SimilarPage,
    "algebra/index.html": contexts.AlgebraPage,
    "compare/choose.html": contexts.ChoosePage,
    "compare/show.html": contexts.ComparePage,
    "own/new.html": contexts.NewConceptPage,
    "own/show.html": contexts.OwnPage,
    "own/delete.html": contexts.DeletePage,
    "own/add.html": contexts.AddRunPage,
    "own/_build.html": contexts.BuildFragment,
    "own/_probes.html": contexts.ProbesFragment,
    "presets/index.html": contexts.PresetsPage,
    "evaluation/index.html": contexts.EvaluationsPage,
    "evaluation/plan.html": contexts.PlanPage,
    "evaluation/show.html": contexts.EvaluationPage,
    "experiment/index.html": contexts.ExperimentsPage,
    "experiment/show.html": contexts.ExperimentPage,
    "validation/report.html": contexts.ReportPage,
    "neuron/show.html": contexts.NeuronPage,
    "neuron/search.html": contexts.SearchPage,
    "neuron/fires.html": contexts.FiresPage,
    "model/show.html": contexts.ModelPage,
    "latents/show.html": contexts.LatentPage,
    "latents/saes.html": contexts.SaesPage,
    "latents/plan.html": contexts.TrainPlanPage,
    "latents/training.html": contexts.TrainingPage,
    "error.html": contexts.ErrorPage,
    "_error.html": contexts.ErrorPage,
}
"""Template → the context whose fields are its variables."""

FRAGMENTS: dict[str, type[Any]] = {
    "status": contexts.StatusView,
    "answer": contexts.AnswerView,
    "picture": contexts.PictureView,
    "neurons": contexts.NeuronsView,
    "steer": contexts.SteerView,
    "steered": contexts.SteeredView,
    "where": contexts.WhereView,
    "trust": contexts.TrustView,
    "sweep": contexts.SweepView,
    "latents": contexts.LatentsView,
    "validation": contexts.ValidationView,
    "evaluation": contexts.EvaluationView,
    "training": contexts.TrainingView,
    "experiment": contexts.ExperimentView,
}
"""Fragments of a page: `name` is rendered by `fragment_template(name)`, whose one variable and root id are `name`."""

FOLDERS = {"validation": "concepts", "evaluation": "evaluation", "experiment": "experiment", "training": "latents"}
"""The folder of a fragment's template, where it is not part of a run's page."""

TEMPLATE_OF = {context: name for name, context in PAGES.items() if name != "_error.html"}


def fragment_template(name: str) -> str:
    return f"{FOLDERS.get(name, 'runs')}/_{name}.html"


class Renderer:
    def __init__(self, templates: Path = TEMPLATES, static: Path = STATIC) -> None:
        self.static = static
        self.environment = Environment(
            loader=FileSystemLoader(templates),
            undefined=StrictUndefined,
            autoescape=True,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self.environment.globals["static"] = self.static_url
        self.environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "sort_keys": False}

    def page(self, context: Any) -> str:
        return self.render(TEMPLATE_OF[type(context)], context)

    def render(self, template: str, context: Any) -> str:
        fields = {field.name: getattr(context, field.name) for field in dataclasses.fields(context)}
        return self.environment.get_template(template).render(fields)

    def fragment(self, name: str, context: Any) -> str:
        return self.environment.get_template(fragment_template(name)).render({name: context})

    def static_url(self, name: str) -> str:
        """The URL of a file in static/, under a folder named after the content of all of them: what a module or a style
        sheet loads by a relative path has a new URL after an upgrade too, so a browser may keep everything for ever.
        Raises FileNotFoundError."""
        if not (self.static / name).is_file():
            raise FileNotFoundError(name)
        return f"/static/{VERSION_MARK}{self.version}/{name}"

    @functools.cached_property
    def version(self) -> str:
        digest = hashlib.sha256()
        for path in sorted(path for path in self.static.rglob("*") if path.is_file()):
            digest.update(path.name.encode() + path.read_bytes())
        return digest.hexdigest()[:12]
