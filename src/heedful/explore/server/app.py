"""The explorer's web application: the page, its files, and the calls of its views."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.exceptions import RequestValidationError

from heedful.errors import UserError
from heedful.explore.catalogue import recipe_swaps, stack, swap_detail
from heedful.explore.export import Export, page_of
from heedful.explore.lessons.answers import answer, steps_of
from heedful.explore.server.page import built
from heedful.explore.subjects import Explorer, parse_request
from heedful.http.guard import Refused, read_json
from heedful.lectures.decks import matching, overview
from heedful.lectures.quiz import quiz

LONGEST = 50.0  # seconds to export a view
QUESTIONS = 10  # of a quiz
LONGEST_SEARCH = 200  # characters of a search in the lectures
LONGEST_NAME = 100  # characters of a recipe, of a key, and of a part
READ = ["GET", "HEAD"]
TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}


def application(explorer: Explorer) -> FastAPI:
    """The routes; the only files served are the page's own, which are read at the start."""
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    files = built()

    @app.api_route("/", methods=READ)
    async def index() -> Response:
        return Response(files["index.html"], media_type="text/html; charset=utf-8")

    @app.api_route("/assets/{name}", methods=READ)
    async def asset(name: str) -> Response:
        found = files.get(f"assets/{name}")
        if found is None:
            return refused(404, "there is no such file")
        return Response(found, media_type=TYPES.get(Path(name).suffix, "application/octet-stream") + "; charset=utf-8")

    @app.get("/api/about")
    async def about() -> Response:
        return await answered(explorer, lambda: json.dumps(explorer.about()).encode(), "application/json")

    @app.get("/api/lectures")
    async def lectures() -> Response:
        return await answered(explorer, lambda: json.dumps(overview()).encode(), "application/json")

    @app.get("/api/lectures/search")
    async def search(words: str) -> Response:
        names = [topic.name for topic in matching(words[:LONGEST_SEARCH])]
        return await answered(explorer, lambda: json.dumps(names).encode(), "application/json")

    @app.get("/api/quiz/{seed}")
    async def questions(seed: int) -> Response:
        return await answered(
            explorer, lambda: json.dumps([one.record() for one in quiz(seed, QUESTIONS)]).encode(), "application/json"
        )

    @app.get("/api/lessons")
    async def lessons() -> Response:
        found = [lesson.record() for lesson in explorer.lessons.values()]
        return await answered(explorer, lambda: json.dumps(found).encode(), "application/json")

    @app.get("/api/lesson")
    async def lesson(name: str, model: str) -> Response:
        def found() -> bytes:
            return json.dumps(steps_of(explorer, explorer.lesson(name[:LONGEST_NAME]), model)).encode()

        return await answered(explorer, found, "application/json")

    @app.get("/api/lesson/step")
    async def step(name: str, at: int, model: str) -> Response:
        def found() -> bytes:
            return json.dumps(answer(explorer, explorer.lesson(name[:LONGEST_NAME]), at, model)).encode()

        return await answered(explorer, found, "application/json")

    @app.get("/api/catalogue")
    async def catalogue() -> Response:
        return await answered(explorer, lambda: json.dumps(stack()).encode(), "application/json")

    @app.get("/api/catalogue/swaps")
    async def swaps(recipe: str) -> Response:
        found = partial(recipe_swaps, recipe[:LONGEST_NAME])
        return await answered(explorer, lambda: json.dumps(found()).encode(), "application/json")

    @app.get("/api/catalogue/swap")
    async def swap(recipe: str, key: str, to: str) -> Response:
        found = partial(swap_detail, *(word[:LONGEST_NAME] for word in (recipe, key, to)))
        return await answered(explorer, lambda: json.dumps(found()).encode(), "application/json")

    @app.post("/api/export")
    async def export(request: Request) -> Response:
        body = await request.body()
        read_json(body)
        kind = "text/html; charset=utf-8"
        return await answered(explorer, lambda: page_of(explorer, parse_request(Export, body), LONGEST).encode(), kind)

    @app.post("/api/{view}/{call}")
    async def ask(view: str, call: str, request: Request) -> Response:
        body = await request.body()
        read_json(body)
        return await answered(explorer, lambda: explorer.answer(view, call, body), "application/octet-stream")

    @app.exception_handler(Refused)
    async def refuse(request: Request, error: Refused) -> Response:
        return refused(error.status, error.message)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        return refused(422, "the address is invalid", *(f"{one['loc'][-1]}: {one['msg']}" for one in error.errors()))

    @app.exception_handler(404)
    async def not_found(request: Request, error: Any) -> Response:
        return refused(404, "not found")

    @app.exception_handler(405)
    async def wrong_method(request: Request, error: Any) -> Response:
        return refused(405, "this method is not allowed here")

    return app


async def answered(explorer: Explorer, work: Callable[[], bytes], kind: str) -> Response:
    """The response with the result of some work; a `UserError` is reported without paths."""
    try:
        return Response(await run_in_threadpool(work), media_type=kind)
    except UserError as error:
        return refused(422, *without_paths(explorer, error))


def without_paths(explorer: Explorer, error: UserError) -> list[str]:
    """The lines of an error, with the names of the models instead of their folders."""
    lines = [error.message, *(f"{name}: {text}" for name, text in (
        ("found", error.found), ("expected", error.expected), ("to do", error.todo)) if text)]  # fmt: skip
    for subject in explorer.subjects.values():
        for path in (subject.folder.resolve(), subject.folder):
            if len(path.parts) > 1:  # "." and "model" are ordinary words, too
                lines = [line.replace(str(path), subject.name) for line in lines]
    return lines


def refused(status: int, message: str, *more: str) -> Response:
    return Response(json.dumps({"error": message, "more": more}), status, media_type="application/json")
