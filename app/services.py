"""What one application consists of, put together in main.py and reached from a request."""

import dataclasses
from typing import Annotated

from fastapi import Depends, Request

from app.broker import Broker
from app.database import Database
from app.pictures import Store
from app.rendering import Renderer
from app.settings import Settings
from app.uploads import Limits
from app.worker import Worker


@dataclasses.dataclass(frozen=True, slots=True)
class Services:
    settings: Settings
    database: Database
    store: Store
    broker: Broker
    worker: Worker
    renderer: Renderer

    @property
    def limits(self) -> Limits:
        return Limits(self.settings.max_upload, self.settings.max_pixels, self.settings.max_side)


def of(request: Request) -> Services:
    services: Services = request.app.state.services
    return services


Serving = Annotated[Services, Depends(of)]
