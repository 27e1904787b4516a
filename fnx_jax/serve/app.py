"""Host side: the routes. Each reads its request, asks the service, and answers; the work is elsewhere.

Read next: chat.py, completions.py, answer.py.
"""

import asyncio
from collections.abc import Callable
from dataclasses import asdict
from importlib.metadata import version
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route as HttpRoute

from fnx_jax.serve.answer import answer
from fnx_jax.serve.body import read_body
from fnx_jax.serve.chat import chat_job
from fnx_jax.serve.completions import completions_job
from fnx_jax.serve.errors import ApiError, model_not_found
from fnx_jax.serve.fields import Route
from fnx_jax.serve.gate import RECORD, REQUEST_ID, Gate, error_response
from fnx_jax.serve.jobs import Job
from fnx_jax.serve.service import Service
from fnx_jax.serve.tokenize import detokenize, tokenize
from fnx_jax.serve.validate import Fields, read_fields, refuse

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def build_app(service: Service) -> Starlette:
    """The ASGI application of a service."""
    routes = Routes(service)
    settings = service.settings
    layers = [Middleware(Gate, settings=settings)]
    if settings.allowed_origins:
        cors = Middleware(
            CORSMiddleware,
            allow_origins=list(settings.allowed_origins),
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=["X-Request-Id", "X-Ignored-Fields"],
        )
        layers.insert(0, cors)
    return Starlette(
        routes=[
            HttpRoute("/health", routes.health),
            HttpRoute("/ping", routes.health, methods=["GET", "POST"]),
            HttpRoute("/version", routes.version),
            HttpRoute("/metrics", routes.metrics),
            HttpRoute("/v1/models", routes.models),
            HttpRoute("/v1/models/{name:path}", routes.model),
            HttpRoute("/v1/server_info", routes.server_info),
            HttpRoute("/v1/chat/completions", routes.chat, methods=["POST"]),
            HttpRoute("/v1/completions", routes.completions, methods=["POST"]),
            HttpRoute("/tokenize", routes.tokenize, methods=["POST"]),
            HttpRoute("/detokenize", routes.detokenize, methods=["POST"]),
        ],
        middleware=layers,
        exception_handlers={ApiError: _on_api_error, HTTPException: _on_http_error, ClientDisconnect: _on_gone},
    )


class Routes:
    """The endpoints of one service."""

    def __init__(self, service: Service):
        self._service = service

    async def health(self, request: Request) -> Response:
        """200 with an empty body while requests can be served, 503 otherwise."""
        self._service.ready()
        return Response()

    async def version(self, request: Request) -> Response:
        """The package's version."""
        return _json({"version": version("fnx_jax")})

    async def metrics(self, request: Request) -> Response:
        """Prometheus text."""
        return Response(self._service.metrics.text(), headers={"content-type": METRICS_TYPE})

    async def models(self, request: Request) -> Response:
        """Every served name."""
        self._service.ready()
        return _json({"object": "list", "data": [self._card(name) for name in self._service.served_names]})

    async def model(self, request: Request) -> Response:
        """One served name."""
        self._service.ready()
        name = request.path_params["name"]
        if name not in self._service.served_names:
            raise model_not_found(name)
        return _json(self._card(name))

    async def server_info(self, request: Request) -> Response:
        """The resolved configuration, without secrets."""
        service, model = self._service, self._service.ready()
        settings = asdict(service.settings)
        settings["api_keys"] = len(service.settings.api_keys)
        return _json(
            {
                "version": version("fnx_jax"),
                "state": service.state,
                "model": model.name,
                "served_names": service.served_names,
                "context": model.context,
                "vocabulary": model.vocabulary,
                "checkpoint_digest": model.digest,
                "fingerprint": dict(model.fingerprint),
                "devices": model.devices,
                "memory": dict(model.memory),
                "config": dict(model.config),
                "sampling_defaults": dict(service.defaults),
                "settings": settings,
                "engine": asdict(model.engine.status()),
            }
        )

    async def chat(self, request: Request) -> Any:
        """POST /v1/chat/completions."""
        return await self._reply(request, "chat", chat_job)

    async def completions(self, request: Request) -> Any:
        """POST /v1/completions."""
        return await self._reply(request, "completions", completions_job)

    async def tokenize(self, request: Request) -> Response:
        """POST /tokenize."""
        return await self._read(request, "tokenize", self._tokens_of(tokenize))

    async def detokenize(self, request: Request) -> Response:
        """POST /detokenize."""
        return await self._read(request, "detokenize", self._tokens_of(detokenize))

    async def _reply(self, request: Request, route: Route, build: Callable[[Service, Fields, str], Job]) -> Any:
        record = request.scope[RECORD]
        job = await self._read(request, route, lambda fields: build(self._service, fields, _id_of(fields, record.id)))
        return await answer(self._service, job, record, request.receive)

    async def _read(self, request: Request, route: Route, work: Callable[[Fields], Any]) -> Any:
        """Reads and checks the body, then does `work` with it."""
        self._service.ready()
        body = await read_body(request, self._service.settings.max_body_bytes)

        def checked() -> Any:
            fields = read_fields(route, body)
            self._service.ignored.note(fields.ignored)
            return work(fields)

        # Reading, rendering and encoding a long prompt would hold up every stream.
        return await asyncio.to_thread(checked)

    def _tokens_of(self, work: Callable[[Service, Fields], dict[str, Any]]) -> Callable[[Fields], Response]:
        return lambda fields: _json(work(self._service, fields), fields.headers())

    def _card(self, name: str) -> dict[str, Any]:
        model = self._service.ready()
        return {
            "id": name,
            "object": "model",
            "created": self._service.created,
            "owned_by": "fnx_jax",
            "root": model.name,
            "parent": None,
            "max_model_len": model.context,
        }


def _id_of(fields: Fields, otherwise: str) -> str:
    request_id = fields.get("request_id", otherwise)
    if not REQUEST_ID.fullmatch(request_id):
        raise refuse("request_id", "must be 1 to 128 letters, digits or . _ : -")
    return request_id


def _json(value: Any, headers: dict[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json", headers=headers)


async def _on_api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error_response(error)


async def _on_http_error(request: Request, error: Exception) -> Response:
    """Unknown paths and methods, in the shape of every other fault."""
    assert isinstance(error, HTTPException)
    says = {404: f"There is nothing at {request.url.path}.", 405: f"{request.method} is not allowed here."}
    fault = ApiError(error.status_code, says.get(error.status_code, error.detail), headers=dict(error.headers or {}))
    return error_response(fault)


async def _on_gone(request: Request, error: Exception) -> Response:
    """The client left while its body was read."""
    request.scope[RECORD].status = 499
    return Response(status_code=499)
