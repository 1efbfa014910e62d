"""The picture: acceptance of users' turns over time, with the moments at which versions came into service, as SVG."""

from html import escape

_WIDTH, _HEIGHT = 860, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 14, 34, 36


def acceptance_over_time(series: dict, seconds: float) -> str:
    """`series` has `points` [[seconds, acceptance]] and `live` [{version, seconds}]; `seconds` is the axis's end."""
    end = max(seconds, 1.0)

    def x(at: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * at / end

    def y(value: float) -> float:
        return _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * value

    parts = [
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" xmlns="http://www.w3.org/2000/svg">',
        "<title>Acceptance of users' turns over time</title>",
    ]
    for tick in (0.0, 0.25, 0.5, 0.75, 1.0):
        parts.append(
            f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y(tick):.1f}" y2="{y(tick):.1f}"/>'
            f'<text x="{_LEFT - 6}" y="{y(tick) + 4:.1f}" text-anchor="end">{tick:g}</text>'
        )
    minutes = range(0, int(end // 60) + 1, max(1, int(end // 60) // 10))
    parts += [f'<text x="{x(m * 60):.1f}" y="{_HEIGHT - 14}" text-anchor="middle">{m} min</text>' for m in minutes]
    lives = series["live"]
    for n, live in enumerate(lives):
        begin, until = x(live["seconds"]), x(lives[n + 1]["seconds"] if n + 1 < len(lives) else end)
        parts.append(
            f'<rect class="band{n % 2}" x="{begin:.1f}" y="{_TOP}" width="{max(0.0, until - begin):.1f}" '
            f'height="{_HEIGHT - _TOP - _BOTTOM}"/>'
            f'<line class="live" x1="{begin:.1f}" x2="{begin:.1f}" y1="{_TOP}" y2="{_HEIGHT - _BOTTOM}"/>'
            f'<text class="live" x="{begin + 3:.1f}" y="{_TOP - 6 - 12 * (n % 2)}">{escape(live["version"])}</text>'
        )
    points = [(x(at), y(value)) for at, value in series["points"]]
    if points:
        parts.append(f'<polyline points="{" ".join(f"{a:.1f},{b:.1f}" for a, b in points)}"/>')
        parts += [f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3.2"/>' for a, b in points]
    parts.append("</svg>")
    return "".join(parts)
