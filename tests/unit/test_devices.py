"""The catalogue, device files, contexts, and what the software's versions mean."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from memgauge import devices
from memgauge.devices import GRADES, Figure, libraries
from memgauge.devices.context import SPREAD, context, local_memory_bytes, observations
from memgauge.devices.stack import Stack, check_release, parse_version, workspace_config_bytes
from memgauge.errors import UsageError
from memgauge.units import GIB, KIB, MIB

CARD = """
[[device]]
name = "my-card"
capacity_bytes = 17_179_869_184
compute_capability = [8, 6]
multiprocessors = 40
threads_per_multiprocessor = 1536
"""


def write(folder: Path, text: str) -> str:
    path = folder / "card.toml"
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ("T4", "nvidia-t4"),
        ("rtx3090", "nvidia-rtx-3090"),
        ("NVIDIA GeForce RTX 2080 Ti", "nvidia-rtx-2080-ti"),
        ("RTX 3060 12GB", "nvidia-rtx-3060"),
        ("NVIDIA GeForce RTX 3060", "nvidia-rtx-3060"),  # of the size that nearly all have
        ("RTX 3060 8GB", "nvidia-rtx-3060-8gb"),
        ("RTX 3080 10GB", "nvidia-rtx-3080"),
        ("NVIDIA GeForce RTX 2080 SUPER", "nvidia-rtx-2080-super"),
        ("NVIDIA GeForce RTX 4070 SUPER", "nvidia-rtx-4070-super"),
        ("NVIDIA GeForce RTX 4090 D", "nvidia-rtx-4090-d"),
        ("NVIDIA GeForce RTX 4090", "nvidia-rtx-4090"),
        ("NVIDIA GeForce RTX 5090 D", "nvidia-rtx-5090-d"),
        ("NVIDIA GeForce GTX 1080", "nvidia-gtx-1080"),
        ("NVIDIA TITAN Xp", "nvidia-titan-xp"),
        ("Quadro RTX 5000", "nvidia-quadro-rtx-5000"),
        ("NVIDIA A10G", "nvidia-a10g"),
        ("NVIDIA L40", "nvidia-l40"),
        ("NVIDIA A800-SXM4-80GB", "nvidia-a800-80gb"),
        ("NVIDIA A800 80GB PCIe", "nvidia-a800-80gb"),
        ("NVIDIA A800 40GB Active", "nvidia-a800-40gb"),
        ("NVIDIA H800", "nvidia-h800"),
        ("NVIDIA H200", "nvidia-h200"),
        ("NVIDIA H200 NVL", "nvidia-h200-nvl"),
        ("NVIDIA GB200", "nvidia-gb200"),
        ("Tesla P100-PCIE-12GB", "nvidia-p100-12gb"),
        ("Tesla P100-SXM2-16GB", "nvidia-p100-16gb"),
        ("Tesla K80", "nvidia-k80"),
        ("NVIDIA A100-SXM4-40GB", "nvidia-a100-40gb"),
        ("Tesla V100-SXM2-32GB", "nvidia-v100-32gb"),
        ("NVIDIA H100 80GB HBM3", "nvidia-h100-80gb"),
        ("nvidia-h100-80gb", "nvidia-h100-80gb"),
        ("NVIDIA H100 PCIe", "nvidia-h100-pcie"),
        ("NVIDIA H100 NVL", "nvidia-h100-nvl"),
        ("NVIDIA GH200 480GB", "nvidia-gh200-96gb"),
        ("H20", "nvidia-h20"),
        ("H200", "nvidia-h200"),
        ("NVIDIA B300 SXM6 AC", "nvidia-b300"),
        ("NVIDIA A30", "nvidia-a30"),
        ("NVIDIA A100-PCIE-40GB", "nvidia-a100-40gb"),
        ("NVIDIA A100 80GB PCIe", "nvidia-a100-80gb"),
        ("Tesla M40 24GB", "nvidia-m40-24gb"),
        ("RTX A6000", "nvidia-a6000"),
        ("Quadro RTX 8000", "nvidia-rtx-8000"),
        ("Quadro RTX 6000", "nvidia-quadro-rtx-6000"),
        ("NVIDIA RTX 6000 Ada Generation", "nvidia-rtx-6000-ada"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "nvidia-rtx-pro-6000"),
        ("NVIDIA TITAN RTX", "nvidia-titan-rtx"),
        ("TITAN V", "nvidia-titan-v"),
        ("NVIDIA GeForce RTX 4070", "nvidia-rtx-4070"),
        ("NVIDIA GeForce RTX 4070 Ti", "nvidia-rtx-4070-ti"),
        ("NVIDIA GeForce RTX 4070 Ti SUPER", "nvidia-rtx-4070-ti-super"),
        ("RTX 4060 Ti 16GB", "nvidia-rtx-4060-ti-16gb"),
        ("AMD Instinct MI250X", "amd-mi250x"),
        ("AMD Instinct MI300X", "amd-mi300x"),
    ],
)
def test_a_card_goes_by_what_people_and_its_driver_call_it(said: str, name: str) -> None:
    assert devices.find(said).name == name


@pytest.mark.parametrize(
    "said",
    ["RTX 4090 Laptop GPU", "RTX 2080 Super with Max-Q Design", "RTX 5090 D v2", "RTX 3080 20GB", "RTX 5000", "RTX 6000",
     "NVIDIA H800 PCIe", "TITAN", "NVIDIA H20-3e", "gpu", "", " "],
)  # fmt: skip
def test_what_could_be_another_card_is_refused(said: str) -> None:
    with pytest.raises(UsageError, match="unknown device"):
        devices.find(said)


@pytest.mark.parametrize(
    ("said", "names"),
    [
        ("A100", ["nvidia-a100-40gb", "nvidia-a100-80gb"]),
        ("H100", ["nvidia-h100-80gb", "nvidia-h100-pcie", "nvidia-h100-nvl"]),
        ("NVIDIA GeForce RTX 4060 Ti", ["nvidia-rtx-4060-ti-8gb", "nvidia-rtx-4060-ti-16gb"]),
        ("RTX 5060 Ti", ["nvidia-rtx-5060-ti-8gb", "nvidia-rtx-5060-ti-16gb"]),
        ("Tesla M40", ["nvidia-m40-12gb", "nvidia-m40-24gb"]),
        ("A800", ["nvidia-a800-40gb", "nvidia-a800-80gb"]),
        ("Tesla P100", ["nvidia-p100-12gb", "nvidia-p100-16gb"]),
    ],
)
def test_a_name_of_several_cards_is_refused_with_all_of_them(said: str, names: list[str]) -> None:
    with pytest.raises(UsageError, match=" or ".join(names)):
        devices.find(said)


def test_what_people_call_several_cards_is_answered_with_near_names() -> None:
    with pytest.raises(UsageError) as caught:
        devices.find("RTX 6000")
    for name in ("nvidia-quadro-rtx-6000", "nvidia-a6000", "nvidia-rtx-6000-ada", "nvidia-rtx-pro-6000"):
        assert name in str(caught.value)


def test_every_card_goes_by_its_title_and_by_its_name_without_the_maker() -> None:
    for device in devices.gpus():
        for said in (device.title, device.name.partition("-")[2], *device.also):
            assert devices.find(said) is device, said


# NVIDIA, CUDA C++ Programming Guide, "Technical Specifications per Compute Capability".
THREADS = {
    (3, 7): 2048, (5, 2): 2048, (6, 0): 2048, (6, 1): 2048, (7, 0): 2048, (7, 5): 1024, (8, 0): 2048, (8, 6): 1536,
    (8, 9): 1536, (9, 0): 2048, (10, 0): 2048, (10, 3): 2048, (12, 0): 1536,
}  # fmt: skip


def test_figures_of_all_cards_fit_each_other() -> None:
    for device in devices.gpus():
        capability, capacity = device.compute_capability, device.capacity_bytes or 0
        assert (capability is None) == device.name.startswith("amd-"), device.name
        assert device.threads_per_multiprocessor == THREADS.get(capability or (0, 0), 2048), device.name
        assert device.name == "nvidia-b300" or capacity % GIB == 0, device.name
        for size in re.findall(r"-(\d+)gb$", device.name):
            assert capacity == int(size) * GIB, device.name
        assert 8 <= (device.multiprocessors or 0) <= 304, device.name
        rates = device.rates
        assert rates is None or (capability is not None and rates.half > rates.float32 and rates.source), (
            device.name
        )
        if rates is not None and capability is not None and capability >= (8, 0):
            assert abs(rates.tf32 / rates.half - 0.5) < 0.02, device.name
    cards = [(d.title, d.compute_capability) for d in devices.gpus()]
    assert len(set(cards)) == len(cards)


def test_tensor_cores_of_geforce_a10g_and_l40_sum_in_float32_at_half_the_rate_of_others() -> None:
    for device in devices.gpus():
        capability = device.compute_capability
        if capability is None or capability < (7, 5):
            continue
        rates = device.rates or devices.rates_of_architecture(capability)
        assert rates is not None
        full = 8 if capability in ((7, 5), (9, 0)) else 4
        if "GeForce" in device.title or device.name in ("nvidia-a10g", "nvidia-l40"):
            assert rates.half == pytest.approx(full / 2 * rates.float32, rel=0.02), device.name
        elif device.name == "nvidia-h20":
            # its tensor cores are slowed down
            assert rates.half > 3.3 * rates.float32
        else:
            assert rates.half > 0.95 * full * rates.float32, device.name


def test_every_figure_has_a_source_and_a_known_grade() -> None:
    for device in devices.gpus():
        assert device.source and device.architecture and device.multiprocessors, device.name
        usable = device.usable_figure
        assert usable is not None and usable.grade in GRADES and usable.source, device.name
        assert 0.9 * (device.capacity_bytes or 0) < usable.bytes <= (device.capacity_bytes or 0), device.name
    for seen in observations():
        assert seen.grade in GRADES and seen.source and seen.instrument


def test_names_that_others_rely_on_are_there() -> None:
    wanted = (
        "nvidia-gtx-titan-x nvidia-p100-16gb nvidia-t4 nvidia-v100-16gb nvidia-v100-32gb nvidia-rtx-2080-ti "
        "nvidia-rtx-3060 nvidia-rtx-3090 nvidia-rtx-4060 nvidia-rtx-4090 nvidia-rtx-5090 nvidia-a10 nvidia-a6000 "
        "nvidia-a100-40gb nvidia-a100-80gb nvidia-l4 nvidia-l40s nvidia-h100-80gb nvidia-h200 nvidia-b200 "
        "amd-mi250 amd-mi300x "
        "nvidia-gtx-1080-ti nvidia-p40 nvidia-m40-12gb nvidia-m40-24gb nvidia-titan-v nvidia-titan-rtx nvidia-rtx-2060 "
        "nvidia-rtx-2070 nvidia-rtx-2080 nvidia-quadro-rtx-6000 nvidia-rtx-8000 nvidia-rtx-3060-ti nvidia-rtx-3070 "
        "nvidia-rtx-3080 nvidia-rtx-3080-ti nvidia-rtx-3090-ti nvidia-rtx-4060-ti-8gb nvidia-rtx-4060-ti-16gb "
        "nvidia-rtx-4070 nvidia-rtx-4070-ti nvidia-rtx-4070-ti-super nvidia-rtx-4080 nvidia-rtx-4080-super "
        "nvidia-rtx-5060-ti-8gb nvidia-rtx-5060-ti-16gb nvidia-rtx-5070 nvidia-rtx-5070-ti nvidia-rtx-5080 "
        "nvidia-a4000 nvidia-a5000 nvidia-rtx-5000-ada nvidia-rtx-6000-ada nvidia-rtx-pro-6000 nvidia-a30 nvidia-a40 "
        "nvidia-h100-pcie nvidia-h100-nvl nvidia-gh200-96gb nvidia-h20 nvidia-b300 amd-mi210 amd-mi250x amd-mi325x "
        "amd-mi355x"
    ).split()
    assert set(wanted) <= set(devices.catalogue())


def test_a_device_file_describes_a_card(tmp_path: Path) -> None:
    text = CARD + 'context = { bytes = 300_000_000, grade = "measured", source = "nvidia-smi" }\n'
    device = devices.find(write(tmp_path, text))
    assert (device.name, device.kind, device.compute_capability) == ("my-card", "cuda", (8, 6))
    figure, basis = context(device, Stack())
    assert figure.expected == 300_000_000 and basis.source == "nvidia-smi"
    assert figure.high - figure.expected == int(300_000_000 * SPREAD["measured"])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[[device]]\nname = 'x'\n", "capacity_bytes is missing"),
        ("[[device]]\nname = 'x'\ncapacity_bytes = 24\n", "between 256 MiB and 4 TiB"),
        (CARD + "usable = { bytes = 1, grade = 'others', source = 'x' }", "usable.bytes = 1"),
        (CARD + "usable = { bytes = 17179869184, grade = 'sure', source = 'x' }", "'sure'"),
        (CARD + "context = { bytes = 99179869184, grade = 'others', source = 'x' }", "context.bytes"),
        (CARD + "context = { bytes = 16179869184, grade = 'others', source = 'x' }", "8589934592"),
        (CARD + "context = { bytes = 5 }", "grade"),
        (CARD.replace("[8, 6]", "[99, -1]"), "compute_capability = [99, -1]"),
        (CARD.replace("my-card", " "), "name is empty"),
        (CARD.replace("my-card", "all"), "name = 'all' stands for every card"),
        (CARD.replace("1536", "5"), "threads_per_multiprocessor = 5: it is a multiple of 32"),
        (CARD + "colour = 'red'", "colour"),
        (CARD + "rates = { half = 70, float32 = 0, memory = 1, source = 'x' }", "rates.float32 = 0"),
        (CARD + "rates = { half = 70, float32 = 35, memory = nan, source = 'x' }", "rates.memory = nan"),
        (CARD + "rates = { half = 70, float32 = 35, memory = 936, source = 'x' }", "99 TB/s"),
        (CARD + "rates = { half = 70, memory = 1, source = 'x' }", "float32"),
        (CARD.replace("40", "-40"), "multiprocessors = -40"),
        (CARD + "architecture = 'gfx90a'", "'gfx90a' is AMD's"),
        (CARD + CARD, "one [[device]] table"),
        ("device = [1]", "one [[device]] table"),
        ("not toml", "not TOML"),
        (CARD + "kind = 'cpu'", "only cards"),
    ],
)
def test_a_device_file_with_missing_or_absurd_figures_is_refused(
    tmp_path: Path, text: str, said: str
) -> None:
    with pytest.raises(UsageError, match=r"card\.toml") as caught:
        devices.find(write(tmp_path, text))
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (CARD + "context = { bytes = 0, grade = 'measured', source = 'x' }", "context.bytes = 0"),
        (
            CARD + "context = { bytes = 300, grade = 'measured', source = 'x' }",
            "write bytes, or leave context out",
        ),
        (CARD.replace("[8, 6]", "8.6"), "compute_capability = 8.6: write two whole numbers, such as [8, 6]"),
        (CARD.replace("[8, 6]", "[8]"), "compute_capability = [8]: write two whole numbers, such as [8, 6]"),
        (CARD.replace("[8, 6]", "[8, 6.5]"), "compute_capability = [8, 6.5]: write two whole numbers"),
        (
            CARD.replace("17_179_869_184", "'16 GB'"),
            "capacity_bytes = '16 GB': write bytes as a whole number",
        ),
        (
            CARD.replace("17_179_869_184", "16e9"),
            "capacity_bytes = 16000000000.0: write bytes as a whole number",
        ),
        (CARD.replace("'my-card'", "5").replace('"my-card"', "5"), "name = 5: write a name in quotes"),
        (CARD.replace('name = "my-card"', ""), "name is missing; write a name in quotes"),
        (CARD.replace("= 40", "= true"), "multiprocessors = True: write a whole number"),
        (CARD + "compute_capabilty = [8, 6]", "no such fact is known (nearest: compute_capability)"),
        (CARD + "also = 'A30'", "also = 'A30': write names in quotes"),
        (CARD + "usable = 5", "usable = 5: write a table, { bytes = 300_000_000"),
        (
            CARD + "usable = { bytes = 5, grade = 'others' }",
            "usable.source is missing; write where it is from",
        ),
        (CARD + "usable = { bytes = 5, grade = 1, source = 'x' }", "usable.grade = 1: write how it is known"),
        (CARD + "usable = { byte = 5 }", "usable.byte = 5: no such fact is known (nearest: bytes)"),
        (
            CARD + "rates = { half = '70', float32 = 1, memory = 1, source = 'x' }",
            "rates.half = '70': write TFLOPS",
        ),
        (CARD.replace("my-card", "cpu"), "'cpu' is this machine's CPU"),
        (
            CARD.replace("my-card", "nvidia-t4"),
            "compute_capability is [7, 5], not [8, 6]; give another card a name",
        ),
        (CARD.replace("my-card", "nvidia-a100-40gb"), "capacity_bytes is 42949672960, not 17179869184"),
    ],
)
def test_a_device_file_says_what_was_written_and_what_to_write(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(UsageError, match=r"card\.toml") as caught:
        devices.find(write(tmp_path, text))
    assert said in str(caught.value) and "$" not in str(caught.value)


@pytest.mark.parametrize(
    "architecture", ["gfx1", "gfx", "gfx90", "gfx 90a", "gfx90az", "cdna9", "CDNA 3", "rdna30"]
)
def test_an_architecture_that_amd_has_not_is_refused(tmp_path: Path, architecture: str) -> None:
    with pytest.raises(UsageError, match=rf"architecture = '{architecture}': .*such as 'gfx90a'"):
        devices.find(write(tmp_path, AMD.replace("gfx90a", architecture)))


def test_a_card_of_the_catalogue_may_have_figures_of_ones_own(tmp_path: Path) -> None:
    text = """
[[device]]
name = "nvidia-t4"
capacity_bytes = 17_179_869_184
compute_capability = [7, 5]
multiprocessors = 40
threads_per_multiprocessor = 1024
usable = { bytes = 16_900_000_000, grade = "others", source = "ECC switched off" }
"""
    usable = devices.find(write(tmp_path, text)).usable
    assert usable is not None and usable.bytes == 16_900_000_000


def test_a_missing_device_file_and_an_unknown_card_are_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"nowhere.toml cannot be read"):
        devices.find(str(tmp_path / "nowhere.toml"))
    with pytest.raises(UsageError, match="nvidia-t4"):
        devices.find("nvidia-t5")


def test_an_observed_context_comes_before_a_derived_one() -> None:
    figure, basis = context(devices.find("nvidia-t4"), Stack(torch=(2, 11), cuda=(12, 8)))
    assert figure.expected == 141_426_688 and basis.grade == "others"
    figure, basis = context(devices.find("nvidia-l4"), Stack(torch=(2, 11)))
    assert basis.grade == "guessed" and figure.low < figure.expected < figure.high


def test_a_derived_context_grows_with_the_threads_of_the_card() -> None:
    small, large = devices.find("nvidia-rtx-3060"), devices.find("nvidia-h100-80gb")
    assert local_memory_bytes(small) == 28 * 1536 * KIB
    difference = context(large, Stack())[0].expected - context(small, Stack())[0].expected
    assert difference == local_memory_bytes(large) - local_memory_bytes(small)


def test_a_card_without_rates_has_those_of_its_architecture(tmp_path: Path) -> None:
    rates = {name: card.rates for name, card in devices.catalogue().items()}
    of = devices.rates_of_architecture
    assert of((8, 6)) == of((8, 7)) == rates["nvidia-rtx-3090"] and of((99, 0)) == rates["nvidia-rtx-5090"]
    assert of((6, 1)) is None  # no tensor cores
    # as before cards were added around these: the order of the catalogue decides nothing
    standing = {
        (7, 0): "nvidia-v100-16gb", (7, 5): "nvidia-t4", (8, 0): "nvidia-a100-40gb", (8, 9): "nvidia-rtx-4090",
        (9, 0): "nvidia-h100-80gb", (10, 0): "nvidia-b200", (10, 3): "nvidia-b200",
    }  # fmt: skip
    for capability, name in standing.items():
        assert of(capability) == rates[name], name
    for name in ("nvidia-a10", "nvidia-a6000", "nvidia-l4", "nvidia-l40s", "nvidia-a100-40gb", "nvidia-t4"):
        mine = rates[name]
        assert mine is not None and mine.half > 3.9 * mine.float32, name
    own = CARD + "rates = { half = 70, float32 = 35, memory = 1, source = 'x' }"
    assert devices.find(write(tmp_path, own)).rates == devices.PublishedRates(
        half=70, float32=35, memory=1, source="x"
    )


def test_guesses_widen_the_range() -> None:
    device = devices.find("nvidia-a100-40gb")
    widths = []
    for grade in ("measured", "others", "guessed"):
        one = type(device)(
            name="x", title="x", kind="cuda", context=Figure(bytes=400 * MIB, grade=grade, source="x")
        )
        figure, _ = context(one, Stack())
        widths.append(figure.high - figure.low)
    assert widths == sorted(widths) and len(set(widths)) == 3


def test_torch_figures_of_torres_lie_within_the_ranges() -> None:
    # Torres 2021, table 4: 497 MB on a TITAN X and 849 MB on a P100 with PyTorch 1.4, for all of a small
    # network's run; the context alone cannot be more, nor its low end above.
    for card, megabytes in (("nvidia-gtx-titan-x", 497), ("nvidia-p100-16gb", 849)):
        figure, _ = context(devices.find(card), Stack(torch=(1, 4)))
        assert figure.low <= megabytes * 10**6 <= figure.high


@pytest.mark.parametrize(
    ("torch", "cuda", "is_lazy"),
    [((1, 12), (11, 3), False), ((1, 13), (11, 7), True), ((1, 13), (11, 6), False)],
)
def test_kernels_are_loaded_lazily_since_torch_1_13_with_cuda_11_7(
    torch: tuple[int, int], cuda: tuple[int, int], is_lazy: bool
) -> None:
    assert Stack(torch=torch, cuda=cuda).is_lazy is is_lazy


@pytest.mark.parametrize(
    ("card", "given", "said"),
    [
        ("nvidia-rtx-5090", {"cuda": (11, 8)}, "CUDA 11.8 .*RTX 5090.*12.0.*--cuda 12.8 or newer"),
        ("nvidia-b200", {"torch": (1, 9)}, "torch 1.9 .*B200.*10.0.*--torch 2.7 or newer"),
        ("nvidia-h100-80gb", {"torch": (2, 0), "cuda": (11, 7)}, "CUDA 11.7 .*--cuda 11.8 or newer"),
        ("nvidia-v100-32gb", {"cuda": (13, 0)}, "CUDA 13.0 .*V100.*7.0.*--cuda 12.6"),
        ("nvidia-a100-40gb", {"torch": (1, 8), "cuda": (10, 2)}, "CUDA 10.2 .*--cuda 11.0 or newer"),
        (
            "nvidia-k80",
            {"torch": (2, 8)},
            "torch 2.8 .*K80.*3.7.*end with CUDA 11.8; write --torch 2.7 or older",
        ),
        ("nvidia-k80", {"torch": (2, 7), "cuda": (12, 6)}, "CUDA 12.6 .*K80.*3.7.*write --cuda 11.8"),
    ],
)
def test_a_cuda_without_kernels_for_the_card_is_refused(
    card: str, given: dict[str, tuple[int, int]], said: str
) -> None:
    device = devices.find(card)
    with pytest.raises(UsageError, match=said):
        Stack(**given).on_card(device.title, device.compute_capability)


def test_every_card_has_a_usual_cuda_with_kernels_for_it() -> None:
    for torch in ((2, 7), (2, 8), (2, 11), (2, 13)):
        for device in devices.gpus():
            if device.name == "nvidia-k80" and torch > (2, 7):
                continue
            usual = Stack(torch=torch).on_card(device.title, device.compute_capability)
            assert usual.on_card(device.title, device.compute_capability) == usual

    def usual_of(card: str, *torch: int) -> tuple[int, int]:
        device = devices.find(card)
        found = Stack(torch=(torch[0], torch[1])).on_card(device.title, device.compute_capability)
        return found.cuda_version

    assert usual_of("nvidia-t4", 2, 13) == (13, 0)
    assert usual_of("nvidia-v100-16gb", 2, 13) == (12, 6)
    assert usual_of("nvidia-rtx-5090", 2, 7) == (12, 8)
    assert usual_of("nvidia-p100-16gb", 1, 4) == (10, 1)
    assert usual_of("nvidia-k80", 2, 7) == (11, 8) and usual_of("nvidia-k80", 1, 12) == (11, 3)


def test_contexts_that_somebody_saw_are_not_refused() -> None:
    for seen in observations():
        device = devices.catalogue().get(seen.device)
        torch, cuda = parse_version(seen.torch, "torch"), parse_version(seen.cuda, "CUDA")
        check_release(torch, cuda)
        if device is not None:
            assert Stack(torch=torch, cuda=cuda).on_card(device.title, device.compute_capability)


@pytest.mark.parametrize(
    ("torch", "cuda", "said"),
    [
        ((2, 6), (10, 2), "torch 2.6 .*CUDA 10.2; write --cuda 12.4 or newer"),
        ((2, 6), (12, 8), "torch 2.6 .*CUDA 12.8; write --cuda 12.4, or --torch 2.7 or newer"),
        ((1, 9), (13, 0), "torch 1.9 .*CUDA 13.0; write --cuda 11.1"),
        ((2, 8), (11, 8), "torch 2.8 .*CUDA 11.8; write --cuda 12.8, or --torch 2.7 or older"),
    ],
)
def test_a_torch_and_a_cuda_that_never_met_are_refused(
    torch: tuple[int, int], cuda: tuple[int, int], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        check_release(torch, cuda)


def test_cublas_workspaces_by_architecture_and_version() -> None:
    newest = Stack(torch=(2, 13))
    assert libraries.cublas_bytes((8, 0), newest) == 8_519_680
    assert libraries.cublas_bytes((9, 0), newest) == 32 * MIB
    assert libraries.cublas_bytes((12, 0), newest) == 32 * MIB
    assert libraries.cublas_bytes((12, 0), Stack(torch=(2, 6))) == 8_519_680
    assert libraries.cublas_bytes((8, 0), Stack(cublas_workspace_config=":0:0")) == 0
    assert libraries.cublas_bytes((8, 0), Stack(torch=(2, 0))) == 8_519_680
    assert libraries.cublas_bytes((8, 0), Stack(torch=(1, 13))) == 4 * MIB
    assert libraries.cublas_bytes((8, 0), Stack(torch=(1, 12))) == 0


def test_cublaslt_shares_the_workspace_since_torch_2_9() -> None:
    assert libraries.cublaslt_bytes(Stack(torch=(2, 6))) == MIB
    assert libraries.cublaslt_bytes(Stack(torch=(2, 9))) == 0
    assert libraries.cublaslt_bytes(Stack(torch=(2, 6), cublaslt_unified=True)) == 0
    assert libraries.cublaslt_bytes(Stack(torch=(2, 9), cublaslt_unified=False)) == MIB
    assert libraries.cublaslt_bytes(Stack(torch=(2, 6), cublaslt_workspace_kib=4096)) == 4 * MIB


def test_hipblaslt_has_76_mib_of_its_own_whatever_is_said_of_sharing() -> None:
    for unified in (None, True, False):
        assert libraries.cublaslt_bytes(Stack(cublaslt_unified=unified), is_nvidia=False) == 76 * MIB
    assert libraries.cublaslt_bytes(Stack(cublaslt_workspace_kib=1024), is_nvidia=False) == MIB


AMD = """
[[device]]
name = "my-card"
capacity_bytes = 68_719_476_736
architecture = "gfx90a"
"""


@pytest.mark.parametrize(
    ("architecture", "mib"),
    [("cdna2", 32), ("gfx90a", 32), ("cdna3", 128), ("gfx942", 128), ("gfx950", 128), ("gfx1100", 32)],
)
def test_a_described_amd_card_is_known_by_its_architecture(
    tmp_path: Path, architecture: str, mib: int
) -> None:
    device = devices.find(write(tmp_path, AMD.replace("gfx90a", architecture)))
    assert not device.is_nvidia
    assert libraries.cublas_bytes_of(device, Stack()) == mib * MIB


def test_sizes_of_a_workspace_setting_count_as_often_as_they_say() -> None:
    assert workspace_config_bytes(":4096:2:16:8") == 8_519_680  # torch's own default, spelled out
    assert workspace_config_bytes(":4096:8") == 32 * MIB
    assert workspace_config_bytes(":16:8") == 128 * KIB


def test_a_workspace_may_be_larger_than_any_card() -> None:
    # torch has no limit on a count: it asks for as much, and runs out of memory
    assert workspace_config_bytes(":4096:999999") == 4096 * 999_999 * KIB
    assert workspace_config_bytes(":4096:2147483647") == 4096 * 2_147_483_647 * KIB


@pytest.mark.parametrize("text", [":4096:2147483648", ":99999999999999999999:1", ":2147483647:2147483647"])
def test_numbers_that_torch_cannot_read_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match=rf"{text}'.*numbers above 2147483647.*such as :4096:8"):
        Stack(cublas_workspace_config=text)


@pytest.mark.parametrize("text", ["4096:8", ":4096", "", ":a:b", ":4096:8,"])
def test_an_unreadable_workspace_setting_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=":SIZE:COUNT"):
        Stack(cublas_workspace_config=text)


def test_contradictory_switches_are_refused() -> None:
    with pytest.raises(UsageError, match="cuDNN is off"):
        Stack(cudnn=False, cudnn_benchmark=True)


def test_versions_are_read_in_the_ways_that_torch_writes_them() -> None:
    assert parse_version("2.6.0+cu124", "torch") == (2, 6)
    assert parse_version("12.8", "CUDA") == (12, 8)
    with pytest.raises(UsageError, match="'two'"):
        parse_version("two", "--torch")


def test_embedding_gradients_are_sorted_above_3072_indices() -> None:
    assert libraries.embedding_backward_bytes(3072, 50257, 768, 8) == 0
    partial = 4096 // 10 + 4096
    expected = 2 * 4096 * 8 + (3 * 4096 + partial) * 8 + partial * 768 * 4
    assert libraries.embedding_backward_bytes(4096, 50257, 768, 8) == expected
