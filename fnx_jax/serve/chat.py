"""Host side: a chat request -> a job. Read next: prompts.py (rendering), jobs.py, chat_format.py."""

import math
from dataclasses import replace

from fnx_jax.engine.request import SamplingParams
from fnx_jax.serve.chat_format import ChatFormat
from fnx_jax.serve.jobs import Job, make_choices, make_head, stream_options, text_rules
from fnx_jax.serve.offers import ToolOffer, read_offer
from fnx_jax.serve.prompts import render_prompt
from fnx_jax.serve.reasoning import reasoning_budget
from fnx_jax.serve.replies import ReplyOptions
from fnx_jax.serve.sampling import reply_limit, sampling_params
from fnx_jax.serve.service import LoadedModel, Service
from fnx_jax.serve.validate import Fields, refuse


def chat_job(service: Service, fields: Fields, request_id: str) -> Job:
    """Checks a chat request against the model, renders its prompt, and prepares its replies.

    Raises: ApiError 400, 404 or 503.
    """
    model, limits = service.ready(), service.limits()
    head = make_head("chatcmpl", fields, request_id, service.check_model(fields))
    options = _options(fields)
    offer = read_offer(fields)
    reuse = fields.get("cache_prompt", True)
    prompt = render_prompt(fields, offer, model.assets, service.markup, service.settings.late_system, reuse)
    limit = reply_limit(fields, limits, len(prompt.ids), "messages")
    sampling = sampling_params(fields, service.defaults, limits, model.assets.eos_token_ids, limit)
    sampling = _with_chat(sampling, options, offer, model, service.markup.call_open)
    rules = text_rules(
        fields,
        sampling,
        in_reasoning=prompt.in_reasoning,
        schemas=offer.schemas if offer.callable else None,
        single_call=offer.callable and not fields.get("parallel_tool_calls", True),
        markup=service.markup,
    )
    budget = reasoning_budget(fields, model.assets.tokenizer, service.markup) if prompt.in_reasoning else None
    n = fields.get("n", 1)
    return Job(
        head,
        ChatFormat(head.id, model.assets.tokenizer, options, service.settings.reasoning_field),
        options,
        make_choices(model, prompt.ids, sampling, rules, n, cache_prompt=reuse, marks=prompt.marks, budget=budget),
        prompt_tokens=len(prompt.ids),
        prompt_field="messages",
        n=n,
        stream=fields.get("stream", False),
        headers=fields.headers(),
        user=fields.get("user"),
    )


def _options(fields: Fields) -> ReplyOptions:
    at_end, always = stream_options(fields)
    top = fields.get("top_logprobs", 0)
    if top and not fields.get("logprobs"):
        raise refuse("top_logprobs", "needs logprobs to be true")
    return ReplyOptions(
        logprobs=fields.get("logprobs", False),
        top=top,
        return_token_ids=fields.get("return_token_ids", False),
        include_reasoning=fields.get("include_reasoning", True),
        usage_at_end=at_end,
        usage_always=always,
    )


def _with_chat(
    sampling: SamplingParams, options: ReplyOptions, offer: ToolOffer, model: LoadedModel, call_open: str
) -> SamplingParams:
    """Adds log-probabilities, and forbids the opening tag where tools are shown but may not be called."""
    opening = model.assets.tokenizer.id_of(call_open)
    masked = offer.tools is not None and not offer.callable and opening is not None
    bias = (*sampling.logit_bias, (opening, -math.inf)) if masked else sampling.logit_bias
    return replace(sampling, logprobs=options.top if options.logprobs else None, logit_bias=bias)
