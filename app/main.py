"""The only wiring point: settings and an engine in, an application out. Torch is imported nowhere but in
`load_engine`, by the worker's thread."""

import contextlib
from collections.abc import AsyncIterator

from fastapi import FastAPI
from fastapi.responses import Response
from fastapi.staticfiles import StaticFiles
from starlette.types import Scope

from app import errors, figures
from app.broker import Broker
from app.database import Database
from app.middleware import Guard
from app.pictures import Store
from app.rendering import STATIC, VERSION_MARK, Renderer
from app.routes import (
    algebra,
    ask,
    attributions,
    compare,
    concepts,
    evaluations,
    events,
    experiments,
    exports,
    latentconcepts,
    latents,
    measurements,
    models,
    neurons,
    own,
    own_make,
    pictures,
    presets,
    runs,
    saes,
    steering,
    swaps,
    sweeps,
    validation,
)
from app.services import Services
from app.settings import Settings
from app.worker import EngineFactory, Worker
from engine.contract import Engine, ModelInfo


def load_engine(settings: Settings) -> Engine:
    """The engine that the settings name."""
    if settings.model == "fake":
        from engine.fake import FakeEngine

        return FakeEngine(settings.fake_delay)
    from engine.local import load_engine as load_local

    loaded: Engine = load_local(settings.model, *_how(settings))
    return loaded


def check_model(settings: Settings) -> ModelInfo:
    """The model that the settings name with every check of its self-check, held or not."""
    if settings.model == "fake":
        return load_engine(settings).info()
    from engine.local import check_model as check_local

    checked: ModelInfo = check_local(settings.model, *_how(settings))
    return checked


def _how(settings: Settings) -> tuple[str | None, str | None, int | None]:
    """Device, number type and bits, None where they are not chosen."""
    return settings.device or None, settings.dtype or None, settings.quantize or None


def create_app(settings: Settings | None = None, engine_factory: EngineFactory | None = None) -> FastAPI:
    """The application. Its database is upgraded and its worker started when it starts to serve (its lifespan)."""
    chosen = settings or Settings()
    database, broker = Database(chosen.url), Broker()
    store = Store(chosen.data_dir / "pictures")
    worker = Worker(database, store, broker, engine_factory or (lambda: load_engine(chosen)), chosen.ranked)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        database.upgrade()
        worker.start()
        figures.warm()  # plotly loads its parts at the first figure: not while someone waits
        try:
            yield
        finally:
            broker.close()
            worker.close()
            database.close()

    app = FastAPI(title="Sfumato", lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)
    app.state.services = Services(chosen, database, store, broker, worker, Renderer())
    app.add_middleware(Guard, settings=chosen)
    errors.install(app)
    app.mount("/static", CachedFiles(directory=STATIC, check_dir=False), name="static")
    for module in (
        algebra,
        ask,
        exports,
        events,
        runs,
        attributions,
        measurements,
        steering,
        presets,
        swaps,
        sweeps,
        pictures,
        own_make,
        own,
        validation,
        concepts,
        models,
        neurons,
        latentconcepts,
        latents,
        saes,
        compare,
        evaluations,
        experiments,
    ):
        app.include_router(module.router)
    return app


class CachedFiles(StaticFiles):
    """Static files: kept for ever under a versioned folder (see `Renderer.static_url`), else asked for each time."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        versioned = path.startswith(VERSION_MARK)
        response = await super().get_response(path.partition("/")[2] if versioned else path, scope)
        response.headers["Cache-Control"] = "public, max-age=31536000, immutable" if versioned else "no-cache"
        return response
