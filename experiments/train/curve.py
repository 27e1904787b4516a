"""Host side: lines of losses as an SVG picture, drawn by hand so that nothing is needed. Read next: card.py."""

import math
from collections.abc import Mapping, Sequence

WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 720, 360, 56, 40, 16
COLOURS = ("#4477aa", "#ee6677", "#228833", "#aa3377")

Points = Sequence[tuple[float, float]]


def curve(lines: Mapping[str, Points], levels: Mapping[str, float], across: str, up: str) -> str:
    """A chart as SVG text.

    Args: lines: points by name. levels: values to mark by a dashed line across, by name. across, up: the axes' names.
    Raises: ValueError where no line has two points.
    """
    points = [point for line in lines.values() for point in line]
    if not any(len(line) > 1 for line in lines.values()):
        raise ValueError("curve: no line of two points")
    xs = [x for x, _ in points]
    low = min([y for _, y in points] + list(levels.values()))
    high = max([y for _, y in points] + list(levels.values()))
    ticks = _ticks(low, high)
    low, high = min(low, ticks[0]), max(high, ticks[-1])

    def place(x: float, y: float) -> tuple[float, float]:
        right = LEFT + (x - min(xs)) / max(max(xs) - min(xs), 1e-9) * (WIDTH - LEFT - 12)
        down = TOP + (high - y) / max(high - low, 1e-9) * (HEIGHT - TOP - BOTTOM)
        return round(right, 1), round(down, 1)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}"'
        ' font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
    ]
    for tick in ticks:
        x, y = place(min(xs), tick)
        parts.append(f'<line x1="{x}" y1="{y}" x2="{WIDTH - 12}" y2="{y}" stroke="#dddddd"/>')
        parts.append(f'<text x="{x - 6}" y="{y + 4}" text-anchor="end">{tick:g}</text>')
    for tick in _ticks(min(xs), max(xs)):
        x, y = place(tick, low)
        parts.append(f'<text x="{x}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{tick:,.0f}</text>')
    parts.append(f'<text x="{WIDTH / 2}" y="{HEIGHT - 6}" text-anchor="middle">{across}</text>')
    parts.append(
        f'<text x="14" y="{HEIGHT / 2}" text-anchor="middle" transform="rotate(-90 14 {HEIGHT / 2})">{up}</text>'
    )
    names = [*lines, *levels]
    for number, name in enumerate(names):
        colour = COLOURS[number % len(COLOURS)]
        line = lines[name] if name in lines else [(min(xs), levels[name]), (max(xs), levels[name])]
        path = " ".join(f"{x},{y}" for x, y in (place(*point) for point in line))
        dashes = "" if name in lines else ' stroke-dasharray="6 4"'
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"{dashes}/>')
        y = TOP + 14 + 18 * number
        parts.append(
            f'<line x1="{WIDTH - 190}" y1="{y - 4}" x2="{WIDTH - 166}" y2="{y - 4}" stroke="{colour}"{dashes}/>'
        )
        parts.append(f'<text x="{WIDTH - 160}" y="{y}">{name}</text>')
    return "\n".join([*parts, "</svg>", ""])


def _ticks(low: float, high: float) -> list[float]:
    """Round numbers, about six, from at most `low` to at least `high`."""
    rough = max(high - low, 1e-9) / 6
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(size * power for size in (1, 2, 5, 10) if size * power >= rough)
    return [round(step * n, 9) for n in range(math.floor(low / step), math.ceil(high / step) + 1)]
