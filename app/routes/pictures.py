"""Stored pictures and samples, as PNG or as they ship."""

from fastapi import APIRouter
from fastapi.responses import FileResponse
from starlette.exceptions import HTTPException

from app.pictures import samples
from app.services import Serving

router = APIRouter()
FOR_EVER = {"Cache-Control": "public, max-age=31536000, immutable"}
A_DAY = {"Cache-Control": "public, max-age=86400"}


@router.get("/pictures/{picture_hash}.png")
def picture(services: Serving, picture_hash: str) -> FileResponse:
    """The pixels that were asked about; the address is their hash, so they never change."""
    try:
        path = services.store.path(picture_hash)
    except FileNotFoundError:
        raise HTTPException(404) from None
    if not path.is_file():
        raise HTTPException(404)
    return FileResponse(path, media_type="image/png", headers=FOR_EVER)


@router.get("/samples/{name}")
def sample(name: str) -> FileResponse:
    known = samples().get(name)
    if known is None:
        raise HTTPException(404)
    return FileResponse(known.path, headers=A_DAY)
