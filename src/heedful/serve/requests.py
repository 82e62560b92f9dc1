"""The bodies of requests, and the messages of errors."""

from __future__ import annotations

import difflib
import json
import math
from typing import Any, ClassVar, Literal, TypeVar

from pydantic import Field, ValidationError, field_validator

from heedful.config import Config
from heedful.decode.settings import Sampling
from heedful.errors import UserError
from heedful.http.answers import Refused
from heedful.http.strict_json import read_json

MOST_INPUTS = 2048  # texts of one request
MOST_CHARACTERS = 2_000_000  # of all texts of one request
MOST_CHOICES = 128
MOST_STOPS = 4


class Body(Config):
    """What all requests have."""

    model: str | None = Field(None, description="the name of a model; may be left out if the server has one model")
    timeout: float | None = Field(
        None, gt=0, le=86_400, description="seconds to answer in; null: the server's limit, which cannot be exceeded"
    )
    user: str | None = Field(None, description="ignored")


class PredictBody(Body):
    """Predictions of a model of any task."""

    inputs: list[Any] = Field(
        min_length=1,
        max_length=MOST_INPUTS,
        description="the inputs: objects with the fields of `GET /v1/models`, or texts where there is a single field",
    )


class EmbeddingsBody(Body):
    """Embeddings of texts by an encoder, as in OpenAI's API."""

    input: str | list[str] = Field(description="a text, or a list of texts")
    encoding_format: Literal["float", "base64"] = Field(
        "float", description="lists of numbers, or little-endian float32 as base64"
    )

    @field_validator("input")
    @classmethod
    def _check_input(cls, value: str | list[str]) -> str | list[str]:
        return bounded(value)


class CompletionBody(Body):
    """Completions of prompts by a language model, as in OpenAI's API; what is not supported must have its default."""

    prompt: str | list[str] = Field("", description="a text, or a list of texts")
    max_tokens: int = Field(16, ge=1, le=1_000_000, description="tokens to generate at most")
    temperature: float = Field(1.0, ge=0, le=100, description="sampling temperature; 0: the most probable token")
    top_p: float | None = Field(None, gt=0, le=1, description="sample from the smallest set with this probability")
    top_k: int | None = Field(None, ge=1, description="sample from the k most probable tokens")
    seed: int | None = Field(None, ge=0, lt=2**63, description="the same seed gives the same text; null: another one")
    n: int = Field(1, ge=1, le=MOST_CHOICES, description="completions of each prompt")
    stop: str | list[str] | None = Field(None, description="up to 4 texts before which a completion ends")
    stream: bool = Field(False, description="send pieces of text as server-sent events")
    echo: bool = Field(False, description="repeat the prompt before the completion")
    logprobs: Literal[0] | None = Field(
        None, description="0: log-probabilities of the tokens, not supported with `echo`; null: none"
    )
    best_of: int | None = Field(None, description="not supported, unless it equals `n`")
    frequency_penalty: Literal[0] | None = Field(None, description="not supported")
    presence_penalty: Literal[0] | None = Field(None, description="not supported")
    logit_bias: dict[str, float] | None = Field(None, max_length=0, description="not supported")
    suffix: None = Field(None, description="not supported")
    stream_options: dict[str, bool] | None = Field(None, description="`include_usage`: count tokens in the last event")

    whole: ClassVar = ("frequency_penalty", "presence_penalty", "logprobs")

    @field_validator(*whole, mode="before")
    @classmethod
    def _whole(cls, value: object) -> object:
        return int(value) if isinstance(value, float) and value.is_integer() else value

    @field_validator("prompt")
    @classmethod
    def _check_prompt(cls, value: str | list[str]) -> str | list[str]:
        return bounded(value)

    @field_validator("stop")
    @classmethod
    def _check_stop(cls, value: str | list[str] | None) -> list[str]:
        found = [value] if isinstance(value, str) else list(value or [])
        if len(found) > MOST_STOPS or not all(0 < len(one) <= 1000 for one in found):
            raise ValueError(f"at most {MOST_STOPS} texts of 1 to 1,000 characters")
        return found

    @property
    def prompts(self) -> list[str]:
        """The prompts as a list."""
        return [self.prompt] if isinstance(self.prompt, str) else self.prompt

    @property
    def stops(self) -> list[str]:
        """The texts before which a completion ends."""
        return list(self.stop or [])

    @property
    def sampling(self) -> Sampling:
        """How tokens are chosen."""
        return Sampling.model_construct(temperature=self.temperature, top_k=self.top_k, top_p=self.top_p)


def bounded(value: str | list[str]) -> str | list[str]:
    """A text or several, if they are neither none nor too many."""
    some = [value] if isinstance(value, str) else value
    if not 1 <= len(some) <= MOST_INPUTS:
        raise ValueError(f"1 to {MOST_INPUTS:,} texts")
    if sum(map(len, some)) > MOST_CHARACTERS:
        raise ValueError(f"at most {MOST_CHARACTERS:,} characters")
    return value


B = TypeVar("B", bound=Body)


def parse_body(kind: type[B], body: bytes) -> B:
    """The body of a request; the error names the first invalid value."""
    value = read_json(body)
    if not isinstance(value, dict):
        raise Refused(400, "the body must be a JSON object")
    if unknown := [name for name in value if name not in kind.model_fields]:
        close = difflib.get_close_matches(unknown[0], kind.model_fields, n=1)
        hint = f"did you mean {close[0]}?" if close else "known: " + ", ".join(kind.model_fields)
        raise Refused(422, f"unknown field {unknown[0][:100]!r}; {hint}")
    given = {name: one for name, one in value.items() if one is not None}  # null is as good as nothing
    try:
        return kind.model_validate(given)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        name = str(first["loc"][0]) if first["loc"] else ""
        about = kind.model_fields[name].description if name in kind.model_fields else None
        what = first["msg"].removeprefix("Value error, ")
        raise Refused(422, f"{name}: {what[:200]}" + (f" ({about})" if about else "")) from None


def user_message(error: UserError | ValueError | TypeError) -> str:
    """The text of an error in one line, without the paths of files: inputs of requests are not files."""
    if not isinstance(error, UserError):
        return str(error)
    parts = [f"{error.where}: {error.message}" if error.where else error.message]
    named = (("found", error.found), ("expected", error.expected), ("to do", error.todo))
    parts += [f"{label}: {text}" for label, text in named if text]
    parts += [user_message(problem) for problem in error.problems]
    return "; ".join(part.replace("\n", " ") for part in parts)[:2000]


def finite_json(value: object) -> bytes:
    """JSON, with null for what JSON has no number for."""
    try:
        return json.dumps(value, allow_nan=False).encode()
    except ValueError:
        return json.dumps(_finite(value), allow_nan=False).encode()


def _finite(value: object) -> object:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    return [_finite(one) for one in value] if isinstance(value, list | tuple) else value
