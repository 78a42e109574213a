"""docs/accuracy.md and its picture, out of the rows of results; every figure is made here."""

from __future__ import annotations

import datetime
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.accuracy import figures
from benchmarks.accuracy.figures import Row
from benchmarks.accuracy.protocols import VISION
from benchmarks.accuracy.run import ABLATIONS, rows_of
from benchmarks.accuracy.scatter import scatter
from benchmarks.accuracy.sweep import section
from memgauge.capacity import LEAST_SPREAD
from memgauge.device_memory import PLACEMENT_SPREAD
from memgauge.records import Range, Uncertainty
from memgauge.units import MIB

_TITLES = {
    "timm": "timm networks, A100-40GB (GPUMemNet project, arXiv 2602.17817): device memory",
    "mlp": "MLPs, A100-40GB (same project): device memory",
    "xmem": "xMem's runs, RTX 3060 and 4060 (arXiv 2510.21048): reserved memory",
    "t4": "Mixed precision, T4 (calibration of highwaterlabs/torch-preflight): allocated and reserved",
    "capped": "xMem's runs under a cap on reserved memory: did it run?",
    "largest": "timm's largest batch on a 24 GB RTX 3090, mixed precision: does it fit, and the next not?",
}
_PEER_NAMES = {
    "xmem": "xMem (told the framework's memory)",
    "dnnmem": "DNNMem, as xMem's authors rebuilt it",
    "schedtune": "SchedTune, likewise",
    "llmem": "LLMem, likewise",
}


def write(results: Path, docs: Path) -> None:
    """Write the page and the picture from the folder of results."""
    found = {name: _with_peers(results, name) for name in _TITLES}
    found = {name: rows for name, rows in found.items() if rows}
    lines = [_HEAD.format(versions=_versions(), date=datetime.date.today())]
    for name, rows in found.items():
        lines.append(f"\n## {_TITLES[name]}\n")
        lines += _counts(rows)
        if name == "capped":
            lines += _capped(rows)
        elif name == "largest":
            lines += _largest(rows)
        else:
            lines += _measured(name, rows)
    swept = rows_of(results / "sweep.jsonl")
    if swept:
        lines += [_SWEEP, *section(swept)]
    lines.append(_TAIL.format(placement=100 * PLACEMENT_SPREAD, least=100 * LEAST_SPREAD))
    docs.mkdir(parents=True, exist_ok=True)
    (docs / "accuracy.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    points = []
    for name in ("timm", "mlp", "xmem"):
        for environment, rows in _by_environment(found.get(name, [])).items():
            kind = "device" if name != "xmem" else "reserved"
            beside = figures.constant(rows, kind)
            good = [r for r in rows if r["half"] == "report" and not r["damaged"]]
            points += [(name, *pair) for pair in figures.of_kind(good, kind, beside)]
            del environment
    (docs / "accuracy.svg").write_text(scatter(points), encoding="utf-8")


def _with_peers(results: Path, name: str) -> list[Row]:
    """Return a set's rows with what other predictors said of them, where they were asked."""
    asked = {row["key"]: row for row in rows_of(results / f"{name}.peers.jsonl")}
    rows = rows_of(results / f"{name}.jsonl")
    for row in rows:
        row["others"] = {**row["others"], **asked.get(row["key"], {}).get("others", {})}
    return rows


def _counts(rows: Sequence[Row]) -> list[str]:
    failed = [r for r in rows if "error" in r]
    halves = Counter(r["half"] for r in rows)
    times = [r["estimated_in"] for r in rows if "error" not in r]
    said = (
        f"{len(rows)} rows ({halves['build']} build, {halves['report']} report), "
        f"{len({r['family'] for r in rows})} families; {len(failed)} could not be estimated"
    )
    if times:
        said += f"; median {statistics.median(times):.2f} s for an estimate (trace, expected size, both ends of the range)"
    said += "."
    lines = [said, ""]
    models = Counter(r["error"][:100] for r in failed)
    lines += [f"- {count} × `{why}`" for why, count in models.most_common(8)]
    return [*lines, ""] if failed else lines


def _by_environment(rows: Iterable[Row]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        found[row["environment"]].append(row)
    return dict(sorted(found.items()))


def _constant(environment: str, rows: Sequence[Row], kind: str) -> int:
    return figures.constant(rows, kind) if figures.takes_constant(environment, kind) else 0


def _measured(name: str, rows: Sequence[Row]) -> list[str]:
    lines: list[str] = []
    kinds = sorted({kind for r in rows for kind in r["measured"]})
    for kind in kinds:
        constants = {e: _constant(e, g, kind) for e, g in _by_environment(rows).items()}
        if any(figures.takes_constant(e, kind) for e in constants):
            said = ", ".join(f"{round(c / MIB)} MiB ({e})" for e, c in constants.items())
            lines += [f"The constant of the environment, from the build half: {said}.", ""]
        lines += [f"**{kind}**, errors in percent of measured", "", _ERROR_HEAD]
        ranges: list[str] = []
        for environment, group in _by_environment(rows).items():
            beside = constants[environment]
            spread = figures.constant_spread(group, beside, kind) if kind == "device" else 0
            for half in ("build", "report"):
                mine = [r for r in group if r["half"] == half and "error" not in r]
                for label, some in (
                    ("all rows", mine),
                    ("without damaged", [r for r in mine if not r["damaged"]]),
                ):
                    if label != "all rows" and len(some) == len(mine):
                        continue
                    title = f"{environment}, {half}, {label}"
                    lines.append(_error_line(title, figures.errors(figures.of_kind(some, kind, beside))))
                    pairs = [
                        (figures.estimate_range(r, kind, beside, spread), r["measured"][kind]) for r in some
                    ]
                    ranges.append(_coverage_line(title, figures.coverage(pairs, [r["family"] for r in some])))
                if kind == "device" and name == "mlp":
                    above = [
                        (p - beside, m - beside) for p, m in figures.of_kind(mine, kind, beside) if m > beside
                    ]
                    lines.append(
                        _error_line(f"{environment}, {half}, above the constant", figures.errors(above))
                    )
        if name == "xmem":
            lines += _apart(rows)
        lines += ["", _RANGE_HEAD, *ranges, ""]
    kind = "device" if "device" in kinds else "reserved"
    lines += [
        "Ablation: the report half without one mechanism, the constant found again each time",
        "",
        _ERROR_HEAD,
    ]
    lines += _ablation(rows, kind)
    lines += ["", "Others on the same rows of the report half", "", _ERROR_HEAD, *_peers(rows, kind), ""]
    return lines


def _apart(rows: Sequence[Row]) -> list[str]:
    """Return xMem's generations by kind of network and by card, both halves apart."""
    lines = []
    for environment, group in _by_environment(rows).items():
        for half in ("build", "report"):
            for kind in ("convolutional", "transformer"):
                for card in sorted({r["device"] for r in group}):
                    some = [
                        r
                        for r in group
                        if (r["half"], r["device"], "error" in r) == (half, card, False)
                        and (r["facts"]["model"] in VISION) == (kind == "convolutional")
                    ]
                    if some:
                        beside = _constant(environment, group, "reserved")
                        said = figures.errors(figures.of_kind(some, "reserved", beside))
                        lines.append(_error_line(f"{environment}, {half}, {kind}, {card}", said))
    return lines


def _ablation(rows: Sequence[Row], kind: str) -> list[str]:
    usable = [r for r in rows if "error" not in r and not r["damaged"] and kind in r["measured"]]
    lines = []
    for title in ("everything", *ABLATIONS):
        pairs = []
        for environment, group in _by_environment(usable).items():
            changed = [
                r if title == "everything" else {**r, "reserved": r["ablations"][title], "limited": None}
                for r in group
            ]
            beside = _constant(environment, changed, kind)
            mine = [r for r in changed if r["half"] == "report"]
            pairs += [(r["reserved"] + beside, r["measured"][kind]) for r in mine]
        lines.append(_error_line(title, figures.errors(pairs)))
    return lines


def _peers(rows: Sequence[Row], kind: str) -> list[str]:
    usable = [r for r in rows if "error" not in r and not r["damaged"] and kind in r["measured"]]
    lines = []
    for title in (
        "memgauge",
        "live fake tensors, no allocator",
        *sorted({n for r in usable for n in r["others"]}),
    ):
        pairs = []
        for environment, group in _by_environment(usable).items():
            beside = _constant(environment, group, kind)
            for row in (r for r in group if r["half"] == "report"):
                if title == "memgauge":
                    said = figures.estimate_range(row, kind, beside).expected
                elif title.startswith("live fake"):
                    said = row["tensor_sum"] + beside
                elif title in row["others"]:
                    said = row["others"][title] + beside
                else:
                    continue
                pairs.append((said, row["measured"][kind]))
        lines.append(_error_line(_PEER_NAMES.get(title, title), figures.errors(pairs)))
    return lines


def _need(said: Row, beside: Range | None) -> Range:
    """Return the capacity that a run must have, as `memgauge.device_memory` gives it."""
    least = said["least"]
    lacking = int(LEAST_SPREAD * least)
    parts = [Uncertainty(source="placement", low_bytes=lacking, high_bytes=lacking, basis="")]
    if beside is None:
        return figures.widened(least, tuple(parts), at_least=0)
    down, up = beside.expected - beside.low, beside.high - beside.expected
    parts.append(Uncertainty(source="context", low_bytes=down, high_bytes=up, basis=""))
    return figures.widened(least + beside.expected, tuple(parts), at_least=0)


def _capped(rows: Sequence[Row]) -> list[str]:
    lines = [_VERDICT_HEAD]
    for half in ("build", "report"):
        said = []
        for row in (r for r in rows if r["half"] == half and "error" not in r):
            need = _need(row, None)
            said.append((figures.judged(need, row["facts"]["cap"]), row["facts"]["ran"]))
        lines.append(_verdict_line(half, figures.verdicts(said)))
    return [*lines, ""]


def _largest(rows: Sequence[Row]) -> list[str]:
    lines = [_VERDICT_HEAD]
    for half in ("build", "report"):
        said = []
        for row in (r for r in rows if r["half"] == half and "error" not in r):
            beside = Range(**dict(zip(("low", "expected", "high"), row["context"], strict=True)))
            need = _need(row, beside)
            said.append((figures.judged(need, row["usable"]), True))
            if row.get("next"):
                need = _need(row["next"], beside)
                said.append((figures.judged(need, row["usable"]), False))
        lines.append(_verdict_line(half, figures.verdicts(said)))
    return [*lines, ""]


_ERROR_HEAD = (
    "| rows | n | median | mean | p90 | p99 | worst | under | failed (> 20 %) |\n"
    "|---|---|---|---|---|---|---|---|---|"
)
_RANGE_HEAD = (
    "| 95 % ranges | n | inside | binomial interval | families alike | mean width | interval score |\n"
    "|---|---|---|---|---|---|---|"
)
_VERDICT_HEAD = "| half | n | uncertain | right of the rest | balanced |\n|---|---|---|---|---|"


def _error_line(title: str, said: dict[str, Any]) -> str:
    if not said["n"]:
        return f"| {title} | 0 | | | | | | | |"
    values = " | ".join(f"{said[k]:.2f}" for k in ("median", "mean", "p90", "p99", "worst"))
    return f"| {title} | {said['n']} | {values} | {said['under']:.0f} % | {said['failed']:.1f} % |"


def _coverage_line(title: str, said: dict[str, Any]) -> str:
    if not said["n"]:
        return f"| {title} | 0 | | | | | |"
    low, high = said["interval"]
    inside = f"{said['inside']:.1f} % | {low:.1f}–{high:.1f}"
    return f"| {title} | {said['n']} | {inside} | {said['alike']:.1f} % | {said['width']:.1f} % | {said['score']:.1f} |"


def _verdict_line(title: str, said: dict[str, Any]) -> str:
    if not said["n"] or said["right"] is None:
        return f"| {title} | {said['n']} | | | |"
    values = f"{said['uncertain']:.1f} % | {said['right']:.1f} % | {said['balanced']:.1f} %"
    return f"| {title} | {said['n']} | {values} |"


def _versions() -> str:
    """Return the versions of what makes the networks."""
    return ", ".join(f"{name} {metadata.version(name)}" for name in ("torch", "timm", "transformers"))


_HEAD = """# Accuracy on GPUs

Estimates beside what others measured on GPUs. Nothing here was measured by us on a GPU: no machine with one
was at hand. The sets are not part of this repository.

```
python -m benchmarks.accuracy run --path FOLDER --out RESULTS
python -m benchmarks.accuracy peers --path FOLDER --out RESULTS --half report --limit 10 --seconds 150
python -m benchmarks.accuracy sweep --path FOLDER --out RESULTS --limit 284 --seconds 120
python -m benchmarks.accuracy report --out RESULTS --docs docs
```

(for the MLPs `--limit 30`, for xMem's runs `--limit 9 --seconds 100`) writes this page and the picture; cases run in the order of a hash of their keys, so that a part is a sample.
Each heading says how many rows were run. Machine: 2 cores, shared with other work (times are by the clock, two
cases at a time). Written on {date} with {versions}.

Each set is divided by family of architectures (the letters that a model's name begins with; for xMem the model,
for MLPs the architecture): SHA-256 of the family, first byte even: **build**, odd: **report**. Relatives under other
names may be on either side (`tf_efficientnet` and `efficientnet`, `swinv` and `swin`). Mechanisms and the
widths of ranges were found on build halves; the report halves only report, with four exceptions: how often ranges
and verdicts of both halves were right was in sight when their two widths were last chosen; rows of both
halves of xMem's set were looked at while its protocol (what version 4.51 of transformers does) was read, and
its report half, which has all of its convolutional networks, contradicted copies for TF32 on consumer cards; the
published rates of those cards then decided where copies are expected (`memgauge.devices.convolutions`); and which timm
made the A100 set was looked for after `hiera`, of its report half, was 10 to 14 % off.

*under*: share of estimates below what was measured. *damaged*: rows of timm's set that contradict the same
model's other batch sizes (off the line through them by more than a quarter) or are below the authors' own sum of
fake tensors for the same row; the estimate plays no part in either.

Networks change under their names: from timm 1.0.9 to 1.0.31 `ecaresnext50t_32x4d` became twice as deep and `hiera`
attends otherwise. The A100 set is of 1.0.9, as its names tell: one that came with 1.0.9 is among them
(`vit_mediumd_patch16_reg4_gap_384`), and none that later versions added to its families. So timm 1.0.9 is what the benchmark
is run with (`constraints.txt`); the peers, which take longer, ran with 1.0.31.

![Estimated against measured, report halves](accuracy.svg)
"""

_SWEEP = """
## Architectures that are in none of these sets

Nothing was measured here. `python -m benchmarks.accuracy sweep` draws up to two networks of each family of timm's
and transformers' names that is in no set above, and all of torchvision's; for each, from its name, one of five cards,
a batch size, precision, optimizer, checkpointing, layout, `cudnn.benchmark`, training or inference. A case that a real
run would refuse too (a batch of one under batch norm) counts as one without an estimate. Seconds are by the clock while
other work kept both cores busy. The run began before CTC's table and layer norm's copy of the gradient were added; of what
had failed for the first, one network was run again.
"""

_TAIL = """
## What stands behind a figure

- The device figures of the A100 sets contain a context that nobody recorded: one constant for each set, the
  median of measured minus reserved of its build half, stands for it. xMem's figures begin after the context and
  contain what is loaded later: one constant for each generation, from its build half (transformers). Reserved and
  allocated figures of the T4 have no constant.
- timm's flags are not recorded: float32, SGD with Nesterov momentum, `cudnn.benchmark` on and the loader that
  copies ahead on a stream of its own, as its script does by default.
- xMem: the cache of keys and values is kept as transformers 4.51 keeps it, T5's attention is written out.
  Batches below about 12 are of random length there, here always of 128 tokens.
- T4: the rows say float16. The script that made them takes bfloat16 where `torch.cuda.is_bf16_supported()`, which
  is true on a T4, by emulation; then neither fused attention nor cuDNN runs. Read so, all four agree; read as
  float16 DistilBERT is 21 % too low. The version of transformers is not recorded; this is the newest.
- RTX 3090: torch 1.12 with CUDA 11.3, the context as in `contexts.toml`; timm's script gives half precision by
  autocast, gradients set to zero rather than None, attention written out (the fused one came with torch 2.0).

## Where the error comes from

On the build half of timm's set, before this version, by what was left of measured minus reserved minus the constant:

| cause | how it shows | what stands for it now |
|---|---|---|
| workspaces of convolutions' gradients | grows with the batch, only where kernels are larger than a point; 5 % of the whole at batches of 64 and 128 | copies for tensor cores where they pay, partial sums |
| the loader's batches | two to three times the pictures of a batch, in all networks alike | streams with pools of their own |
| channels last | 2 to 9 % too low wherever a convolution's input has its channels last (pvt_v2, convformer) | outputs keep that layout, as cuDNN's do; torch's own `meta` rule does not |
| the constant itself | 100 to 200 MiB less for small transformers: the constant had absorbed half of the workspaces | found again: about 75 MiB are left |

## Ranges

Three independent parts, joined by the root of the sum of squares: the context (here the constant, as far
off as the smallest quarter of the build half shows it to be), the libraries' workspaces (the whole span from none
to the highest known of all) and placement ({placement:g} % of reserved: 95 % of the residuals of the build half of
timm's set are inside, and of xMem's, which are a little larger). The least capacity, which verdicts rest on, has
the context's width and {least:g} %, with which 96 % of the build halves' verdicts are right.
Families are not alike: where each is counted once ("families alike"), fewer ranges hold on the report half, and that is
what a new architecture may expect. A wider placement would hold more of them, at the cost of every other range, and
nothing where ranges fail by much: MnasNet and MobileNetV2 take 12 to 17 % more at some batch sizes and not at
others; rows are damaged in ways that nothing else shows; and `cudnn.benchmark` tries a plan by Fourier
transforms. Such a plan takes 1 to 18 GiB for a moment, mostly at batches of 8 and 16. What rows of the build half lack
is what a convolution of theirs of one point would take in tiles of 32 × 32 (`transform_bytes`): `resnetv2_50` at 8 at
least 4,336 MiB, 512 to 2,048 channels 4,437; `resnetv2_50d_frn` at 16 4,509 and 4,522; `eca_resnext26ts` at 16 2,267 and
2,278. Neighbouring batch sizes of the same networks show none, so that it is a line of the output and no part of the
range.

## What is not modelled

Which plan cuDNN's heuristics choose is not published ([decision 6](decisions/0006-cudnn-workspaces.md)). Seen on
build halves and left out, because nothing published explains it: poolformer takes 4 % more at a batch of 128 and
nothing at 32; convformer and caformer 3 to 6 % more, botnet50ts 7 to 9 %; cspdarknet53 5 % less.
"""
