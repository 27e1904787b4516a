"""Host side: a completions request -> a job, and the several forms of its prompt.

Read next: jobs.py, completion_format.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from fnx_jax.engine.request import SamplingParams
from fnx_jax.serve.assets import TextAssets
from fnx_jax.serve.choice import Choice
from fnx_jax.serve.completion_format import CompletionFormat
from fnx_jax.serve.jobs import Job, make_choices, make_head, stream_options, text_rules
from fnx_jax.serve.prompts import encode
from fnx_jax.serve.replies import ReplyOptions
from fnx_jax.serve.sampling import Limits, check_ids, reply_limit, sampling_params
from fnx_jax.serve.service import Service
from fnx_jax.serve.validate import Fields, refuse


@dataclass(frozen=True)
class TextPrompt:
    """One prompt. text: as given, or what given ids say."""

    ids: tuple[int, ...]
    text: str


def completions_job(service: Service, fields: Fields, request_id: str) -> Job:
    """Checks a completions request against the model and prepares its replies.

    Raises: ApiError 400, 404 or 503.
    """
    model, limits = service.ready(), service.limits()
    head = make_head("cmpl", fields, request_id, service.check_model(fields))
    options = _options(fields)
    prompts = read_prompts(fields.get("prompt"), model.assets, limits.vocabulary, service.settings.max_prompts)
    n, seed = fields.get("n", 1), None
    choices: list[Choice] = []
    for prompt in prompts:
        sampling = _sampling(service, fields, limits, prompt, options)
        seed = sampling.seed if seed is None else seed
        sampling = replace(sampling, seed=seed)
        rules, reuse = text_rules(fields, sampling), fields.get("cache_prompt", True)
        choices += make_choices(model, prompt.ids, sampling, rules, n, len(choices), cache_prompt=reuse)
    echoes = {index: prompts[index // n].text for index in range(len(choices))}
    shows_prompt = fields.get("prompt_logprobs") is not None
    return Job(
        head,
        CompletionFormat(model.assets.tokenizer, options, echoes, shows_prompt),
        options,
        choices,
        prompt_tokens=sum(len(prompt.ids) for prompt in prompts),
        prompt_field="prompt",
        n=n,
        stream=fields.get("stream", False),
        headers=fields.headers(),
        user=fields.get("user"),
    )


def read_prompts(value: Any, assets: TextAssets, vocabulary: int, most: int) -> list[TextPrompt]:
    """Reads `prompt`: a string, a list of strings, a list of ids, or a list of lists of ids.

    Raises: ApiError 400.
    """
    if isinstance(value, str) or (isinstance(value, list) and value and _is_id(value[0])):
        return [_prompt(value, "prompt", assets, vocabulary)]
    if not isinstance(value, list) or not value:
        raise refuse("prompt", "must be a string, a list of strings, a list of token ids or a list of such lists")
    if len(value) > most:
        raise refuse("prompt", f"must hold at most {most} prompts")
    return [_prompt(entry, f"prompt[{index}]", assets, vocabulary) for index, entry in enumerate(value)]


def _prompt(value: Any, param: str, assets: TextAssets, vocabulary: int) -> TextPrompt:
    if isinstance(value, str):
        return TextPrompt(encode(assets, value, param), value)
    if not isinstance(value, list) or not all(_is_id(token) for token in value):
        raise refuse(param, "must be a string or a list of token ids")
    if not value:
        raise refuse(param, "must come to at least one token")
    check_ids(param, value, vocabulary)
    return TextPrompt(tuple(value), assets.tokenizer.decode(value))


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _options(fields: Fields) -> ReplyOptions:
    at_end, always = stream_options(fields)
    if fields.get("stream") and fields.get("prompt_logprobs") is not None:
        raise refuse("prompt_logprobs", "is not supported together with stream")
    return ReplyOptions(
        logprobs=fields.get("logprobs") is not None,
        top=fields.get("logprobs", 0),
        return_token_ids=fields.get("return_token_ids", False),
        echo=fields.get("echo", False),
        skip_special=fields.get("skip_special_tokens", True),
        usage_at_end=at_end,
        usage_always=always,
    )


def _sampling(
    service: Service, fields: Fields, limits: Limits, prompt: TextPrompt, options: ReplyOptions
) -> SamplingParams:
    limit = reply_limit(fields, limits, len(prompt.ids), "prompt")
    eos: Sequence[int] = service.ready().assets.eos_token_ids
    sampling = sampling_params(fields, service.defaults, limits, eos, limit)
    wanted = [fields.get("prompt_logprobs")] + ([options.top] if options.echo and options.logprobs else [])
    shown = [top for top in wanted if top is not None]
    return replace(
        sampling,
        logprobs=options.top if options.logprobs else None,
        prompt_logprobs=max(shown) if shown else None,
    )
