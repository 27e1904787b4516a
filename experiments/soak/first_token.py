"""Host side: the first token of a prompt that is sent again: how many rounds before it, and how long, by its length."""

import statistics
from collections.abc import Sequence

from experiments.http_client import ROUNDS, Client, HttpError
from experiments.soak.finding import Finding
from experiments.soak.servers import Servers
from experiments.soak.text import prompt_of

ROUNDS_MOST = 3


def first_token(servers: Servers, lengths: Sequence[int], repeats: int) -> Finding:
    """Sends a prompt of each length once, then again and again, for one token. Raises HttpError."""
    client, model = servers.served, servers.served.model()
    wrong, unchecked, compared, ms = [], [], 0, {}
    figures: dict[str, float] = {}
    for length in lengths:
        body = {"model": model, "prompt": list(prompt_of(client, length, seed=length)), "max_tokens": 1, "seed": 3}
        fresh = client.complete(body)
        plain = servers.plain.complete(body | {"model": servers.plain.model()})
        seconds = []
        for _ in range(repeats):
            before = rounds(client)
            again = client.complete(body)
            seconds.append(again.end_s - again.begin_s)
            took = rounds(client) - before
            compared += 1
            if again.token_sha != plain.token_sha:
                wrong.append(f"{length} tokens: {again.token_sha}, {plain.token_sha} was wanted")
            if not again.cached:
                unchecked.append(f"{length} tokens: a repeat was not resumed")
            elif took > ROUNDS_MOST:
                wrong.append(
                    f"{length} tokens: {took} rounds before the first token, {ROUNDS_MOST} at most were wanted"
                )
            figures[f"rounds_{length}"] = max(took, figures.get(f"rounds_{length}", 0))
        ms[length] = 1000 * statistics.median(seconds)
        figures[f"resent_ms_{length}"] = round(ms[length], 2)
        figures[f"fresh_ms_{length}"] = round(1000 * (fresh.end_s - fresh.begin_s), 2)
    figures["longest_to_shortest_ratio"] = round(ms[max(ms)] / ms[min(ms)], 3)
    return Finding("first_token", compared, wrong, unchecked, figures)


def rounds(client: Client) -> int:
    """Rounds that the server has run. Raises HttpError, also where it does not tell."""
    totals = client.totals()
    if ROUNDS not in totals:
        raise HttpError(f"/metrics: no {ROUNDS}, so that rounds cannot be counted")
    return int(totals[ROUNDS])
