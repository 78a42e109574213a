"""A scatter picture as SVG: estimated against measured, both logarithmic."""

from __future__ import annotations

import math
from collections.abc import Sequence

from memgauge.units import GIB

_SIDE, _MARGIN = 560, 60
_COLOURS = {"timm": "#1f6fb4", "mlp": "#d9722b", "xmem": "#3a923a"}
_NAMES = {"timm": "timm, A100", "mlp": "MLPs, A100", "xmem": "xMem, RTX 3060 and 4060"}


def scatter(points: Sequence[tuple[str, int, int]]) -> str:
    """Return the picture of (set, estimated bytes, measured bytes); lines are equality and ±20 %."""
    amounts = [b for _, p, m in points for b in (p, m) if b > 0] or [GIB]
    low, high = math.log2(min(amounts)) - 0.1, math.log2(max(amounts)) + 0.1

    def place(amount: float) -> float:
        return (math.log2(max(amount, 1)) - low) / max(high - low, 1e-9) * (_SIDE - 2 * _MARGIN)

    def x(amount: float) -> float:
        return _MARGIN + place(amount)

    def y(amount: float) -> float:
        return _SIDE - _MARGIN - place(amount)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_SIDE}" height="{_SIDE}" font-family="sans-serif" '
        'font-size="12">',
        f'<rect width="{_SIDE}" height="{_SIDE}" fill="white"/>',
    ]
    for power in range(math.ceil(low), math.floor(high) + 1):
        amount = 2.0**power
        label = f"{amount / GIB:g} GiB"
        parts.append(
            f'<line x1="{x(amount):.1f}" y1="{y(2**low):.1f}" x2="{x(amount):.1f}" y2="{y(2**high):.1f}" stroke="#eee"/>'
            f'<line x1="{x(2**low):.1f}" y1="{y(amount):.1f}" x2="{x(2**high):.1f}" y2="{y(amount):.1f}" stroke="#eee"/>'
            f'<text x="{x(amount):.1f}" y="{_SIDE - _MARGIN + 16}" text-anchor="middle">{label}</text>'
            f'<text x="{_MARGIN - 6}" y="{y(amount) + 4:.1f}" text-anchor="end">{label}</text>'
        )
    for factor, style in ((1.0, ""), (1.2, ' stroke-dasharray="4"'), (0.8, ' stroke-dasharray="4"')):
        start, end = 2**low / min(factor, 1), 2**high / max(factor, 1)
        parts.append(
            f'<line x1="{x(start):.1f}" y1="{y(start * factor):.1f}" x2="{x(end):.1f}" '
            f'y2="{y(end * factor):.1f}" stroke="#999"{style}/>'
        )
    for name, estimated, measured in points:
        parts.append(
            f'<circle cx="{x(measured):.1f}" cy="{y(estimated):.1f}" r="2.4" fill="{_COLOURS[name]}" '
            'fill-opacity="0.5"/>'
        )
    for number, name in enumerate(_COLOURS):
        count = sum(1 for point in points if point[0] == name)
        height = _MARGIN + 16 * number
        parts.append(
            f'<circle cx="{_MARGIN + 14}" cy="{height - 4}" r="4" fill="{_COLOURS[name]}"/>'
            f'<text x="{_MARGIN + 24}" y="{height}">{_NAMES[name]} ({count})</text>'
        )
    parts.append(
        f'<text x="{_SIDE / 2}" y="{_SIDE - 16}" text-anchor="middle">measured</text>'
        f'<text x="16" y="{_SIDE / 2}" text-anchor="middle" transform="rotate(-90 16 {_SIDE / 2})">estimated</text>'
        "</svg>"
    )
    return "\n".join(parts) + "\n"
