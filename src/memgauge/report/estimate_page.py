"""The page of an estimate: the predicted time line by category, the peak explained, layers, tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from memgauge.explain.peak import first_peak
from memgauge.explain.rows import layer_title
from memgauge.records import Category, Estimate, Timeline, Trace
from memgauge.report.curves import numpy
from memgauge.report.page import escaped, figure, page, table
from memgauge.report.style import (
    COLOURS,
    GREY,
    LETTER,
    LIMIT,
    byte_ticks,
    draw_limit,
    label,
    plotly,
    rows_of,
    styled,
)
from memgauge.report.tables import kind_rows, merge_steps, room, span_name
from memgauge.report.thinning import lowest_and_highest
from memgauge.units import format_bytes

_BUCKETS = 3000
_MOST_LAYERS, _MOST_SPANS = 60, 100
_NARROWEST = 400  # of the width: what is narrower is no band that anybody sees
_MOST_NAMES, _NAME_ROWS = 40, 3  # of phases above the curves: as many as have room, above each other
_NEAR = 2  # so many times as high as the curves a card's room is drawn; higher it would flatten them


def estimate_page(estimate: Estimate, trace: Trace, timeline: Timeline) -> str:
    """Return one HTML page for an estimate.

    Args:
        estimate: What the run will take.
        trace: The storages behind it.
        timeline: Where the allocator put them.
    """
    name = str(estimate.workload.get("target") or "workload")
    return page(f"{name} on {estimate.device['name']} – memgauge", _sections(name, estimate, trace, timeline))


def _sections(name: str, estimate: Estimate, trace: Trace, timeline: Timeline) -> Iterator[str]:
    peak, at = estimate.peak, estimate.at_peak
    yield f"<h1>{escaped(name)} on {escaped(estimate.device['title'])}</h1>"
    yield f"<p>predicted peak allocated {format_bytes(peak.allocated_bytes)}, in {escaped(at.phase)}"
    where = f" of {escaped(at.layer)}" if at.layer else ""
    yield f", at {escaped(at.operator or 'the beginning')}{where}</p>"
    if estimate.fits is not None:
        verdict, why = escaped(estimate.fits.verdict), escaped(room(estimate.fits))
        yield f"<p><strong>fits: {verdict}</strong> – {why}</p>"
    yield table(("memory", "peak ", "what it is"), kind_rows(estimate), long="what it is")
    if trace.events:
        yield "<h2>Over the run, by category</h2>" + figure(
            category_timeline(trace, timeline, _room_for_torch(estimate)), 1
        )
    yield "<h2>Who holds it at the peak</h2>" + figure(peak_map(estimate), 2)
    whole = sum(at.categories.values()) or 1
    held = sorted(at.categories.items(), key=lambda item: -item[1])
    yield table(
        ("category", "at the peak ", "share "),
        [(c, format_bytes(b), f"{100 * b / whole:.1f} %") for c, b in held],
    )
    yield from _on_card(estimate)
    phases = merge_steps([(p.name, (p.allocated_bytes,)) for p in estimate.phases])
    yield "<h2>Phases</h2>" + table(
        ("phase", "highest allocated "), [(span_name(names), format_bytes(v[0])) for names, v in phases]
    )
    layers = sorted(estimate.layers, key=lambda y: (-sum(y.at_peak_bytes.values()), -y.peak_bytes))
    yield "<h2>Layers</h2>" + table(
        ("layer", "type", "output", "parameters ", "at the peak ", "own highest "),
        [
            (
                layer_title(y.path, y.type),
                y.type,
                "—" if y.output_shape is None else "×".join(map(str, y.output_shape)),
                f"{y.parameters:,}",
                format_bytes(sum(y.at_peak_bytes.values())),
                format_bytes(y.peak_bytes),
            )
            for y in layers[:_MOST_LAYERS]
        ],
        long="layer",
    )
    if len(layers) > _MOST_LAYERS:
        yield f'<p class="faint">and {len(layers) - _MOST_LAYERS} more, in --json</p>'
    notes = [("assumed", text) for text in estimate.assumptions] + [
        ("left out", t) for t in estimate.unmodelled
    ]
    if notes:
        yield "<h2>Assumed and left out</h2>" + table(("", "what"), notes, long="what")


def _context_bytes(estimate: Estimate) -> int | None:
    """Return what the process is expected to take on the device outside torch's allocator."""
    device, reserved = estimate.peak.device_bytes, estimate.peak.reserved_bytes
    return None if device is None or reserved is None else device.expected - reserved


def _room_for_torch(estimate: Estimate) -> int | None:
    """Return what torch's allocator may reserve on the card, None where there is none."""
    context, fits = _context_bytes(estimate), estimate.fits
    if context is None or fits is None or fits.capacity_bytes is None:
        return None
    return fits.capacity_bytes - context


def _on_card(estimate: Estimate) -> Iterator[str]:
    """Yield what the device figure is made of, and how far each part may be off."""
    context, peak = _context_bytes(estimate), estimate.peak
    if context is None or peak.device_bytes is None:
        return
    fits = estimate.fits
    usable = None if fits is None else fits.capacity_bytes
    rows = [
        ("tensors and workspaces: reserved by torch", peak.reserved_bytes),
        ("context and loaded kernels", context),
        ("together, on the device", peak.device_bytes.expected),
        ("usable on the card", usable),
    ]
    yield "<h2>On the card</h2>" + table(("part", "expected "), [(n, format_bytes(b)) for n, b in rows])
    yield "<h2>How far it may be off</h2>" + table(
        ("part", "less ", "more ", "from"),
        [
            (part.source, f"−{format_bytes(part.low_bytes)}", f"+{format_bytes(part.high_bytes)}", part.basis)
            for part in estimate.uncertainty
        ],
        long="from",
    )


_MOST_CELLS = 1200  # of the map, before deeper layers open by a click only
_LAYER = "#667080"
_INK = {c.value: COLOURS[place % len(COLOURS)] for place, c in enumerate(Category)}


def category_timeline(trace: Trace, timeline: Timeline, room_bytes: int | None = None) -> Any:
    """Return allocated bytes over the events of the run, stacked by category, phases as bands; above them the reserve.

    Args:
        trace: What was asked for.
        timeline: Where the allocator put it.
        room_bytes: What the allocator may reserve on the card; drawn where it is near.
    """
    np, go = numpy(), plotly()
    count = len(timeline.allocated_bytes)
    changes = {c: np.zeros(count, np.int64) for c in Category}
    for place, event in enumerate(trace.events[:count]):
        size = timeline.block_bytes[event.storage]
        changes[trace.categories[event.storage]][place] = size if event.requested_bytes > 0 else -size
    held = {c.value: np.cumsum(v) for c, v in changes.items() if v.any()}
    allocated = np.frombuffer(timeline.allocated_bytes, np.int64)
    reserved = None if timeline.reserved_bytes is None else np.frombuffer(timeline.reserved_bytes, np.int64)
    keep = _kept([allocated] if reserved is None else [allocated, reserved])
    drawn = go.Figure()
    for category, values in held.items():
        line = {"width": 0.5, "color": _INK[category], "shape": "hv"}
        drawn.add_trace(_curve(keep, values[keep], category, line, stackgroup="all"))
    if reserved is not None:
        line = {"width": 1.4, "color": GREY, "shape": "hv"}
        drawn.add_trace(_curve(keep, reserved[keep], "reserved", line))
    top = int((allocated if reserved is None else reserved).max())
    if room_bytes is not None and room_bytes <= _NEAR * top:
        top = max(top, room_bytes)
        draw_limit(drawn, room_bytes, f"room on the card {format_bytes(room_bytes)}")
    instant = first_peak(timeline)
    highest = int(allocated[instant])
    drawn.add_annotation(x=instant, y=highest, text=f"peak {format_bytes(highest)}", arrowcolor=LIMIT)
    _draw_phases(drawn, [event.phase for event in trace.events[:count]])
    drawn.update_xaxes(title_text="allocations and releases, in order")
    drawn.update_yaxes(title_text="bytes", rangemode="tozero", **byte_ticks(float(top)))
    return styled(drawn, 440).update_layout(margin={"t": 70})  # room for the names of phases


def _kept(curves: Sequence[Any]) -> Any:
    """Return the places to draw of curves over the same events: all, or the lows and highs of each."""
    np = numpy()
    order = np.arange(len(curves[0]))
    if len(order) <= 2 * _BUCKETS:
        return order
    found = (lowest_and_highest(order, curve, _BUCKETS) for curve in curves)
    return np.unique(np.concatenate([[0, len(order) - 1], *found]))


def _curve(x: Any, y: Any, name: str, line: dict[str, Any], **others: Any) -> Any:
    hovertemplate = "%{y:,.0f} B<extra>%{fullData.name}</extra>"
    return plotly().Scatter(
        x=x, y=y, name=name, mode="lines", line=line, hovertemplate=hovertemplate, **others
    )


def _draw_phases(drawn: Any, phases: Sequence[str]) -> None:
    """Shade every other phase that can be seen, and name those with room for it; `phases` has that of each event."""
    count, begin = len(phases), 0
    is_shaded = True
    spans = []
    for place in range(1, count + 1):
        if place == count or phases[place] != phases[begin]:
            spans.append((begin, place))
            begin = place
    for first, last in spans[:_MOST_SPANS]:
        is_shaded ^= last - first > count / _NARROWEST
        if is_shaded:
            drawn.add_vrect(x0=first, x1=last, fillcolor="rgba(128,128,128,.10)", line_width=0, layer="below")
    named = [(first, last) for first, last in spans[:_MOST_SPANS] if last - first > count / _MOST_NAMES]
    drawn.update_layout(annotations=[*drawn.layout.annotations, *_names(named, phases)])


def _names(spans: Sequence[tuple[int, int]], phases: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield the names of phases above the figure, each from its begin, or up to its end at the right edge."""
    count = len(phases)
    texts = [label(phases[first], 22) for first, _ in spans]
    wide = [LETTER * count * (len(text) + 1) for text in texts]
    late = [first + width > count for (first, _), width in zip(spans, wide, strict=True)]
    begins = [
        last - width if is_late else first
        for (first, last), width, is_late in zip(spans, wide, late, strict=True)
    ]
    rows = rows_of([(begin, begin + width) for begin, width in zip(begins, wide, strict=True)], _NAME_ROWS)
    for span, text, is_late, row in zip(spans, texts, late, rows, strict=True):
        if row is not None:
            yield {
                "x": span[is_late],
                "y": 1,
                "yref": "paper",
                "yanchor": "bottom",
                "xanchor": "right" if is_late else "left",
                "yshift": 12 * row,
                "showarrow": False,
                "text": text,
                "font": {"size": 10},
            }


def peak_map(estimate: Estimate) -> Any:
    """Return a map of what is held at the peak: layers by their path, in each its categories."""
    go = plotly()
    ids, names, parents, sizes, inks = ["all"], ["at the peak"], [""], [0], ["rgba(0,0,0,0)"]
    within: dict[str, int] = {"all": 0}  # bytes of each layer with all below it
    for layer in estimate.layers:
        held = {c: b for c, b in layer.at_peak_bytes.items() if b}
        if not held:
            continue
        parent = "all"
        parts = layer.path.split(".") if layer.path else [layer_title(layer.path, layer.type)]
        for depth, part in enumerate(parts):
            number = "/".join(("all", *parts[: depth + 1]))
            if number not in within:
                within[number] = 0
                inks.append(_LAYER)
                ids.append(number)
                names.append(label(part, 30))
                parents.append(parent)
                sizes.append(0)
            within[number] += sum(held.values())
            parent = number
        within["all"] += sum(held.values())
        for category, count in held.items():
            ids.append(f"{parent}#{category}")
            names.append(category)
            parents.append(parent)
            sizes.append(count)
            inks.append(_INK.get(category, GREY))
    texts = [format_bytes(size or within[number]) for number, size in zip(ids, sizes, strict=True)]
    drawn = go.Figure(
        go.Treemap(
            ids=ids,
            labels=names,
            parents=parents,
            values=sizes,
            text=texts,
            branchvalues="remainder",
            textinfo="label+text+percent root",
            hovertemplate="%{label}<br>%{value:,} B, %{percentRoot} of all<extra></extra>",
            maxdepth=-1 if len(ids) <= _MOST_CELLS else 4,
            marker={
                "colors": inks,
                "pad": {"t": 17, "l": 2, "r": 2, "b": 2},
                "line": {"width": 1, "color": "rgba(128,128,128,.5)"},
            },
            textfont={"size": 11},
            tiling={"pad": 2},
            pathbar={"visible": len(ids) > _MOST_CELLS},
        )
    )
    return styled(drawn, 480).update_layout(margin={"l": 0, "r": 0, "t": 30, "b": 8})
