"""Host side: /tokenize and /detokenize, over the code that chat and completions use. Read next: prompts.py."""

from typing import Any

from fnx_jax.serve.offers import read_offer
from fnx_jax.serve.prompts import render_prompt
from fnx_jax.serve.sampling import check_ids
from fnx_jax.serve.service import Service
from fnx_jax.serve.validate import Fields, refuse


def tokenize(service: Service, fields: Fields) -> dict[str, Any]:
    """Ids of a text or of a conversation as the chat route would run it.

    Raises: ApiError.
    """
    model = service.ready()
    service.check_model(fields)
    if (fields.get("prompt") is None) == (fields.get("messages") is None):
        raise refuse("prompt", "or messages must be given, and not both")
    tokenizer = model.assets.tokenizer
    if fields.get("messages") is not None:
        offer = read_offer(fields)
        ids = render_prompt(fields, offer, model.assets, service.markup, service.settings.late_system).ids
    elif not isinstance(fields.get("prompt"), str):
        raise refuse("prompt", "must be a string")
    else:
        ids = tokenizer.encode(fields.get("prompt"), fields.get("add_special_tokens", True))
    spellings = [tokenizer.spelling(token) for token in ids] if fields.get("return_token_strs") else None
    return {"count": len(ids), "max_model_len": model.context, "tokens": ids, "token_strs": spellings}


def detokenize(service: Service, fields: Fields) -> dict[str, Any]:
    """Text of ids, special tokens included.

    Raises: ApiError.
    """
    model = service.ready()
    service.check_model(fields)
    tokens = fields.get("tokens")
    if tokens is None:
        raise refuse("tokens", "is missing")
    check_ids("tokens", tokens, model.vocabulary)
    return {"prompt": model.assets.tokenizer.decode(tokens)}
