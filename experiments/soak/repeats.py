"""Host side: prompts again and again, resumed from a kept state and drafted: one hash each, greedy and drawn."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor

from experiments.soak.finding import Finding
from experiments.soak.servers import Servers
from experiments.soak.text import prompt_of

PROMPT_TOKENS = 777
DRAWS = {"greedy": {"temperature": 0.0}, "seeded": {"temperature": 0.8, "top_p": 0.95, "seed": 11}}


def repeats(servers: Servers, count: int, streams: int, max_tokens: int) -> Finding:
    """Sends a prompt `count` times for each way to draw, `streams` of them at once. Raises HttpError."""
    prompt = prompt_of(servers.served, PROMPT_TOKENS)
    shared = {"model": servers.served.model(), "prompt": list(prompt), "max_tokens": max_tokens}
    bodies = {name: shared | fields for name, fields in DRAWS.items()}
    plain = servers.plain.model()
    wanted = {name: servers.plain.complete(body | {"model": plain}).token_sha for name, body in bodies.items()}
    servers.served.complete(bodies["greedy"])
    order = list(bodies) * count
    with ThreadPoolExecutor(streams) as pool:
        answers = list(pool.map(lambda name: servers.served.complete(bodies[name]), order))
    found = Counter((name, answer.token_sha) for name, answer in zip(order, answers, strict=True))
    wrong = [
        f"{name}: {times} of {count} repeats have hash {sha}"
        for (name, sha), times in found.items()
        if sha != wanted[name]
    ]
    resumed = [answer.cached for answer in answers]
    accepted, drafted = (sum(getattr(answer, name) for answer in answers) for name in ("accepted", "drafted"))
    unchecked = []
    if fresh := resumed.count(0):
        unchecked.append(f"{fresh} of {len(answers)} repeats were not resumed")
    if not 0 < accepted < drafted:
        unchecked.append(f"{drafted} drafts were tested, {accepted} accepted")
    figures = {
        "repeats": count,
        "ways_to_draw": len(DRAWS),
        "hashes": len(found),
        "prompt_tokens": len(prompt),
        "resumed_at_row": min(resumed),
        "drafts_tested": drafted,
        "drafts_accepted": accepted,
    }
    hashes = {f"repeats_{name}": str(sha) for name, sha in wanted.items()}
    return Finding("repeats", len(answers), wrong, unchecked, figures, hashes)
