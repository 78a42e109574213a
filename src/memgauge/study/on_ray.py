"""Trials on a Ray cluster: Ray places them, by the cores and the memory that their estimates say; we only ask and wait.

A trial runs on its node as it would here: a fresh process under the monitor, in a folder of that node. What it left
(result, run file) and the description of that node's machine come back as bytes and are told like any other.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from memgauge.errors import MissingError, UsageError, missing_extra
from memgauge.study.harvest import MACHINE, OBSERVED, RESULT, RUN, SAID, STOPPED, USED
from memgauge.study.local import Executor
from memgauge.study.machine import this_machine
from memgauge.study.order import Order
from memgauge.study.process import Running
from memgauge.study.runner import Runner
from memgauge.units import MIB

_KEPT = (RESULT, OBSERVED, STOPPED, USED, RUN, SAID)
_WAIT_S = 0.2
LEAST_BYTES = (
    512 * MIB
)  # asked for a trial without an estimate: what importing a framework takes, and as much again
_HOME = str(Path(__file__).resolve().parents[2])


def run_order(order_json: bytes) -> dict[str, bytes]:
    """Run one trial on this node, and return what it left: contents by name of file."""
    order = msgspec.json.decode(order_json, type=Order)
    with tempfile.TemporaryDirectory(prefix="memgauge-trial-") as place:
        folder = Path(place)
        running = Running(order, folder, outlives_us=False)
        try:
            while not running.is_over():
                time.sleep(0.01)
        finally:
            running.kill()  # the worker is ended by Ray: the trial does not outlive it
        found = {name: (folder / name).read_bytes() for name in _KEPT if (folder / name).is_file()}
    found[MACHINE] = msgspec.json.encode(this_machine(_node_name()))
    return found


def _node_name() -> str:
    """Return what this node is called: its host, and Ray's own number if several share the host."""
    import platform

    import ray

    alive = [n for n in ray.nodes() if n["Alive"]]
    host = platform.node()
    if len({n["NodeManagerHostname"] for n in alive}) == len(alive):
        return host
    return f"{host}/{ray.get_runtime_context().get_node_id()[:6]}"


class OnRay:
    """Runs trials on a Ray cluster.

    Args:
        address: Of the cluster; `auto` finds the one that runs here.

    Raises:
        MissingError: Ray is not installed, or there is no cluster at the address.
    """

    jobs = 2  # others may run on the same node: what they do is not taken for a disturbance

    def __init__(self, address: str | None, say: Callable[[str], None]) -> None:
        try:
            import ray
        except ModuleNotFoundError as error:
            raise missing_extra("ray", "ray") from error
        self._ray, self._say = ray, say
        self._is_ours = not ray.is_initialized()
        if self._is_ours:
            environment = {"env_vars": {"PYTHONPATH": _HOME}}
            try:
                ray.init(address=address or "auto", log_to_driver=False, runtime_env=environment)
            except (ConnectionError, ValueError, RuntimeError) as error:
                raise MissingError(
                    f"there is no Ray cluster at {address or 'auto'}: {error}; start one with: ray start --head"
                ) from error
        self._tasks: dict[Any, tuple[int, Path]] = {}
        self._remote = ray.remote(max_retries=0, max_calls=1)(run_order)

    def _largest(self, resource: str) -> float:
        nodes = [n["Resources"] for n in self._ray.nodes() if n["Alive"]]
        return max((float(n.get(resource, 0)) for n in nodes), default=0.0)

    @property
    def capacity_bytes(self) -> int | None:
        return int(self._largest("memory")) or None

    @property
    def is_full(self) -> bool:
        """Whether enough of them wait in Ray's queue; what does not fit now it keeps until it does."""
        nodes = [n["Resources"] for n in self._ray.nodes() if n["Alive"]]
        return bool(self._tasks) and len(self._tasks) >= 2 * sum(float(n.get("CPU", 0)) for n in nodes)

    def can_take(self, order: Order) -> bool:
        """Return whether one more may wait in Ray's queue.

        Raises:
            UsageError: No node could ever take it.
        """
        cores = self._largest("CPU")
        if order.cores > cores:
            raise UsageError(
                f"a trial takes {order.cores} cores, the largest node of the cluster has {cores:g}; set [study] threads"
            )
        if order.subject.device != "cpu" and self._largest("GPU") < 1:
            raise UsageError("[study] device = 'cuda': no node of the cluster has a GPU")
        return not self.is_full

    def start(self, order: Order, folder: Path) -> None:
        wanted = (
            order.memory_bytes or LEAST_BYTES
        )  # a range that reaches above the largest node may still fit
        resources = {"num_cpus": order.cores, "memory": min(wanted, self.capacity_bytes or wanted)}
        if order.subject.device != "cpu":
            resources["num_gpus"] = 1
        task = self._remote.options(**resources).remote(msgspec.json.encode(order))
        self._tasks[task] = (order.number, folder)

    def finished(self) -> list[int]:
        if not self._tasks:
            return []
        ready, _ = self._ray.wait(list(self._tasks), num_returns=1, timeout=_WAIT_S)
        numbers = []
        for task in ready:
            number, folder = self._tasks.pop(task)
            folder.mkdir(parents=True, exist_ok=True)
            for name in (*_KEPT, MACHINE):
                (folder / name).unlink(missing_ok=True)
            try:
                for name, content in self._ray.get(task).items():
                    (folder / name).write_bytes(content)
            except self._ray.exceptions.RayError as error:
                # A worker or a node that died leaves nothing: the trial is not finished, and is run again.
                self._say(f"trial {number}: {type(error).__name__}, its worker or node was lost")
            numbers.append(number)
        return numbers

    def stop(self) -> list[int]:
        numbers = [number for number, _ in self._tasks.values()]
        for task in self._tasks:
            with contextlib.suppress(
                Exception
            ):  # the cluster may be gone; nothing of ours is left there then
                self._ray.cancel(task, force=False)
        self._tasks.clear()
        return numbers


def on_ray(address: str | None) -> Callable[[Runner], Executor]:
    """Return what makes the executor of a runner."""

    def make(runner: Runner) -> Executor:
        def say(text: str) -> None:
            runner.note(text)

        return OnRay(address, say)

    return make
