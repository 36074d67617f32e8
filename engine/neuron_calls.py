"""`engine.neurons_contract.NeuronEngine` over one loaded model: what `LocalEngine` can tell of single neurons."""

from collections.abc import Sequence

from engine import lens, survey
from engine.builtin.surveyed import scenes
from engine.contract import Floats, IsCancelled, OnProgress, Question, never
from engine.loading import Loaded
from engine.neurons_contract import Box, Fires, Lens, Promotions, Survey


class NeuronCalls:
    """Mixed into an engine that owns a model."""

    @property
    def loaded(self) -> Loaded:
        """The model."""
        raise AssertionError("an engine says which model it owns")

    def _enter(self, method: str = "direct") -> None:
        """Refuse another thread."""
        raise AssertionError("an engine says who may call it")

    def lens(self, layer: int, index: int, top: int = 12, alike: int = 10) -> Lens:
        self._enter()
        return lens.lens(self.loaded, layer, index, top, alike)

    def promotions(
        self, top: int = 5, on_progress: OnProgress | None = None, cancelled: IsCancelled = never
    ) -> Promotions:
        self._enter()
        return lens.promotions(self.loaded, top, on_progress, cancelled)

    def scenes(self, n: int) -> tuple[Question, ...]:
        return tuple(Question(pixels, text, 1) for pixels, text in scenes(n)) if self.loaded.builtin else ()

    def survey(
        self, questions: Sequence[Question], on_progress: OnProgress | None = None, cancelled: IsCancelled = never
    ) -> Survey:
        self._enter()
        return survey.survey(self.loaded, questions, on_progress, cancelled)

    def activation_maps(self, layer: int, index: int, questions: Sequence[Question]) -> tuple[Floats | None, ...]:
        self._enter()
        return survey.activation_maps(self.loaded, layer, index, questions)

    def fires(self, question: Question, box: Box, top: int = 12) -> Fires:
        self._enter()
        return survey.fires(self.loaded, question, box, top)
