"""The measured tables of docs/studies/: from the folders of finished studies into the pages.

    memgauge study run mahendran && memgauge study run torres-short && …
    python benchmarks/studies_pages.py FOLDER_OF_STUDIES

FOLDER_OF_STUDIES holds the studies' folders (`mahendran`, `torres-short`, …). Each page has a place for a table,
between `<!-- STUDY -->` and `<!-- /STUDY -->`; what stands there is replaced. `--print` writes to stdout only.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from memgauge.reproduce.mahendran_trials import EXPERIMENTS

DOCS = Path(__file__).parent.parent / "docs" / "studies"
PAGES = {
    "mahendran": "mahendran",
    "mahendran-random": "mahendran",
    "torres-short": "torres",
    "torres-alexnet": "torres",
    "denneman-short": "denneman",
    "denneman": "denneman",
    "frameworks": "frameworks",
}
MIB = 2**20
FIGURES = {
    "average_system_used_bytes": "machine, average",
    "peak_resident_bytes": "peak resident",
    "peak_network_bytes": "above baseline",
    "peak_allocated_bytes": "allocated",
    "tf_cpu_peak_bytes": "TensorFlow's own",
}


NEW_BASELINE = "Above baseline: less imports, data and what torch loads at its first optimizer, which trials that train make."
OLD_BASELINE = (
    "Above baseline: less imports and data only, by an earlier definition: in trials that train with PyTorch this "
    "column holds some 73 MiB that torch loads at its first optimizer."
)


def study_of(folder: Path) -> dict[str, Any]:
    """Return a study as JSON, of its trials those that are done, in the order of their numbers."""
    command = [sys.executable, "-m", "memgauge", "study", "show", str(folder), "--json"]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found: dict[str, Any] = json.loads(said)
    found["trials"] = [t for t in found["trials"] if t.get("status") == "done"]
    return found


def table(trials: list[dict[str, Any]], *, figures: list[str]) -> list[str]:
    """Return a table in Markdown: one line for each trial, memory in MiB."""
    names = list(dict.fromkeys(name for trial in trials for name in trial["params"]))
    present = [f for f in figures if any(f in trial["figures"] for trial in trials)]
    predicted = any((trial.get("predicted") or {}).get("allocated_bytes") for trial in trials)
    head = [
        "trial",
        *names,
        *(FIGURES[f] for f in present),
        *["predicted allocated"] * predicted,
        "s per step",
    ]
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for trial in trials:
        cells = [str(trial["number"]), *(_text(trial["params"].get(name)) for name in names)]
        cells += [_mib(trial["figures"].get(f)) for f in present]
        if predicted:
            cells.append(_mib((trial.get("predicted") or {}).get("allocated_bytes")))
        outcome = trial["outcome"]
        cells.append(f"{outcome['seconds'] / outcome['steps']:.3f}")
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def agreement(trials: list[dict[str, Any]]) -> list[str]:
    """Return a sentence on predicted against measured peak allocated."""
    errors = [
        abs(trial["predicted"]["allocated_bytes"] / trial["figures"]["peak_allocated_bytes"] - 1)
        for trial in trials
        if trial["figures"].get("peak_allocated_bytes")
        and (trial.get("predicted") or {}).get("allocated_bytes")
    ]
    if not errors:
        return []
    return [
        "",
        f"Predicted against measured peak allocated over {len(errors)} PyTorch trials: median error "
        f"{100 * statistics.median(errors):.2f} %, largest {100 * max(errors):.2f} %.",
    ]


def definition(study: dict[str, Any]) -> str:
    """Return what the column above baseline is less, by the baselines that the study has."""
    of_torch = [b for key, b in study["baselines"].items() if ": torch, " in key]
    if not of_torch:
        return ""
    return NEW_BASELINE if all(b["with_optimizer_bytes"] is not None for b in of_torch) else OLD_BASELINE


def about(study: dict[str, Any]) -> str:
    """Return where the trials ran, how disturbed and how real they are, and what their columns are."""
    trials = study["trials"]
    machine, versions = trials[0]["machine"], {}
    for trial in trials:
        versions |= trial["versions"]
    listed = ", ".join(f"{name} {version}" for name, version in sorted(versions.items()))
    disturbed = sum(bool((trial.get("background") or {}).get("reasons")) for trial in trials)
    made = sum(bool(trial["outcome"]["synthetic_data"]) for trial in trials)
    return (
        f"{len(trials)} trials on {machine['cores']} cores ({machine['processor']}, {machine['system']}); {listed}. "
        f"{disturbed} of them are flagged as disturbed by other work on the machine; {made} ran on generated data. "
        f"Memory in MiB. {definition(study)}"
    ).rstrip()


def evidence(folder: Path) -> list[str]:
    """Return what each parameter explains of each figure, and the conclusion in memgauge's words."""
    command = [sys.executable, "-m", "memgauge", "study", "explain", str(folder), "--json"]
    found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    shown = [f for f in found["figures"] if f["importances"] and f["figure"] in FIGURES]
    if not shown:
        return []
    names = list(dict.fromkeys(i["name"] for f in shown for i in f["importances"]))
    lines = [
        "",
        "Share of the variance, 95 % interval, and the memory from end to end; bold: a driver.",
        "",
        f"| | {' | '.join(FIGURES[f['figure']] for f in shown)} |",
        f"|{'---|' * (len(shown) + 1)}",
    ]
    for name in names:
        cells = []
        for f in shown:
            row = {i["name"]: i for i in f["importances"]}.get(name)
            if row is None:
                cells.append("")
                continue
            low, high = 100 * row["low"], 100 * row["high"]
            text = (
                f"{100 * row['share']:.1f} % ({low:.1f} to {high:.1f}), {row['effect_bytes'] / MIB:,.1f} MiB"
            )
            cells.append(f"**{text}**" if row["verdict"] == "driver" else text)
        lines.append(f"| {name} | {' | '.join(cells)} |")
    floors = [f"{100 * f['floor']:.1f} %" for f in shown]
    lines.append(f"| noise reaches | {' | '.join(floors)} |")
    told = [line for f in shown for line in f["conclusion"]]
    kept = [line for line in told if any(word in line for word in ("driven", "stands out", " bytes per "))]
    return [*lines, "", *(f"- {line}" for line in kept)]


def his_column(trials: list[dict[str, Any]]) -> list[str]:
    """Return Mahendran's table with ours beside it, and the rank correlations of both with what was varied."""
    from scipy.stats import spearmanr

    lines = [
        "| trial | learning rate | batch | his: machine, average, MB | ours: machine, average | ours: process, peak resident | "
        "ours: above baseline | ours: network, peak allocated |",
        f"|{'---|' * 8}",
    ]
    groups: dict[str, list[tuple[float, dict[str, Any]]]] = {}
    for experiment in EXPERIMENTS:
        for number, his in enumerate(experiment.trials, 1):
            ours = next(
                t
                for t in trials
                if tuple(t["params"]["widths"]) == his.widths
                and t["params"]["learning_rate"] == float(his.rate)
                and t["params"]["batch_size"] == his.batch_size
            )
            groups.setdefault(ours["params"]["data"], []).append((float(his.measured), ours))
            figures = ours["figures"]
            cells = [
                f"{ours['params']['data']} {number}",
                his.rate,
                str(his.batch_size),
                f"{float(his.measured):,.0f}",
            ]
            cells += [
                _mib(figures[f])
                for f in (
                    "average_system_used_bytes",
                    "peak_resident_bytes",
                    "peak_network_bytes",
                    "peak_allocated_bytes",
                )
            ]
            lines.append(f"| {' | '.join(cells)} |")
    lines += [
        "",
        "Rank correlation (Spearman) with the learning rate:",
        "",
        "| | his column | ours: machine, average | ours: above baseline | ours: allocated |",
        "|---|---|---|---|---|",
    ]
    for name, rows in groups.items():
        rates = [t["params"]["learning_rate"] for _, t in rows]
        columns = [[measured for measured, _ in rows]]
        columns += [
            [t["figures"][f] for _, t in rows]
            for f in ("average_system_used_bytes", "peak_network_bytes", "peak_allocated_bytes")
        ]
        found = [float(spearmanr(rates, c).statistic) for c in columns]
        lines.append(f"| {name}, {len(rows)} trials | {' | '.join(f'{r:+.2f}' for r in found)} |")
    return lines


def _mib(value: int | None) -> str:
    return "" if value is None else f"{value / MIB:,.1f}"


def _text(value: object) -> str:
    if value is None:
        return ""
    return "-".join(map(str, value)) if isinstance(value, list) else str(value)


def main() -> int:
    """Write the tables of every study that is there into its page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="holds the studies' folders")
    parser.add_argument("--print", action="store_true", help="to stdout, change no page")
    chosen = parser.parse_args()
    for study, page in PAGES.items():
        folder = chosen.folder / study
        if not (folder / "ledger.db").is_file():
            continue
        found = study_of(folder)
        if {"waiting", "running"} & set(found["by_status"]) or not found["trials"]:
            print(f"{study}: not finished, left out", file=sys.stderr)
            continue
        trials = found["trials"]
        figures = [f for f in FIGURES if study.startswith("mahendran") or not f.startswith("average")]
        lines = [about(found), "", *table(trials, figures=figures), *agreement(trials)]
        if study.startswith("mahendran"):
            lines += evidence(folder)
        put(study, page, lines, chosen.print)
        if study == "mahendran":
            put("mahendran-his", page, his_column(trials), chosen.print)
    return 0


def put(place: str, page: str, lines: list[str], is_printed: bool) -> None:
    """Write lines into their place on a page, or print them."""
    text = f"<!-- {place} -->\n" + "\n".join(lines) + f"\n<!-- /{place} -->"
    if is_printed:
        print(text)
        return
    path = DOCS / f"{page}.md"
    found = path.read_text()
    path.write_text(re.sub(rf"<!-- {place} -->.*?<!-- /{place} -->", lambda _: text, found, flags=re.S))


if __name__ == "__main__":
    sys.exit(main())
