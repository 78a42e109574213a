from __future__ import annotations

import json

from places import HEAD, Place, Server

STUDY = "[limits]\nsteps = 1\n[space.width]\nvalues = [16, 32, 48]\n"


def named(name: str) -> str:
    return HEAD.replace('name = "try"', f'name = "{name}"')


def test_two_runners_share_a_study_on_a_server(place: Place, server: Server) -> None:
    place.study(STUDY, named("shared"))
    runners = [
        place.start(
            "study", "run", "study.toml", "-o", name, "--ledger", server.url, "--machine", name, "--json"
        )
        for name in ("left", "right")
    ]
    ended = [r.communicate(timeout=300) for r in runners]
    assert [r.returncode for r in runners] == [0, 0], ended
    found = json.loads(place.memgauge("study", "show", server.url, "--study", "shared", "--json"))
    widths = sorted(t["params"]["width"] for t in found["trials"])
    assert widths == [16, 32, 48]  # planned once, though both began
    assert all(t.get("status") == "done" and t["attempts"] == 1 for t in found["trials"])


def test_a_server_that_goes_down_in_the_middle_loses_nothing(place: Place, server: Server) -> None:
    gate = place.gate()
    place.study(STUDY.replace("16, 32, 48", "16") + f"[fixed]\ngate = '{gate.path}'\n", named("down"))
    runner = place.start("study", "run", "study.toml", "--ledger", server.url, "-o", "out")
    gate.arrived()
    server.stop()
    gate.open()
    for line in runner.stderr:  # type: ignore[union-attr]
        if "trying again" in line:
            break
    server.start()
    _, said = runner.communicate(timeout=120)
    assert runner.returncode == 0, said
    found = json.loads(place.memgauge("study", "show", "out", "--json"))
    assert [(t["status"], t["attempts"]) for t in found["trials"]] == [("done", 1)]


def test_a_server_that_is_not_there_is_an_error_of_one_line(place: Place) -> None:
    place.study(STUDY)
    said = place.memgauge(
        "study", "run", "study.toml", "--ledger", "postgresql://me:secret@127.0.0.1:1/none", code=3
    )
    assert "the ledger postgresql" in said and "cannot be used" in said
    assert "secret" not in said and "Traceback" not in said
