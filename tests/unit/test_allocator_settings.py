"""Settings of PyTorch's CUDA allocator: read, refused and written as torch does."""

from __future__ import annotations

import pytest

from memgauge.allocators.settings import CudaSettings, format_cuda_settings, parse_cuda_settings
from memgauge.errors import UnsupportedError, UsageError
from memgauge.units import MIB


def test_nothing_set_means_the_defaults() -> None:
    assert parse_cuda_settings("") == CudaSettings()
    assert CudaSettings().large_segment_bytes == 20 * MIB


def test_every_key_that_matters_is_read() -> None:
    text = """
        max_split_size_mb:64, max_non_split_rounding_mb:48, large_segment_size_mb:32,
        garbage_collection_threshold:0.8, per_process_memory_fraction:0.5,
        expandable_segments:True, roundup_power2_divisions:4, backend:native,
    """
    assert parse_cuda_settings(text) == CudaSettings(
        max_split_bytes=64 * MIB,
        max_non_split_rounding_bytes=48 * MIB,
        large_segment_bytes=32 * MIB,
        garbage_collection_threshold=0.8,
        per_process_memory_fraction=0.5,
        expandable_segments=True,
        roundup_power2_divisions=(4,) * 16,
    )


def test_a_later_key_replaces_an_earlier_one() -> None:
    assert parse_cuda_settings("max_split_size_mb:30,max_split_size_mb:40").max_split_bytes == 40 * MIB


@pytest.mark.parametrize(
    ("text", "table"),
    [  # as torch 2.13.0 fills its own table, from 1 MiB to 32 GiB
        ("[256:1,512:2,>:4]", (1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 4, 4, 4, 4, 4, 4)),
        ("[64:8,128:2,256:4,512:2,1024:4,>:1]", (8, 8, 8, 8, 8, 8, 8, 2, 4, 2, 4, 1, 1, 1, 1, 1)),
        ("[64:2,256:4]", (2, 2, 2, 2, 2, 2, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0)),
        ("[64:2,32:4,>:8]", (2, 2, 2, 2, 2, 4, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8)),
        ("[1:0,2:2]", (0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)),
        ("[>:4]", (0, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4)),
        ("[131072:2]", (2,) * 16),
        ("[32768:2,>:4]", (2,) * 16),
        ("8", (8,) * 16),
        ("[]", ()),
        ("[256:0]", ()),
    ],
)
def test_divisions_are_tabled_by_power_of_two(text: str, table: tuple[int, ...]) -> None:
    assert parse_cuda_settings(f"roundup_power2_divisions:{text}").roundup_power2_divisions == table


@pytest.mark.parametrize(
    "text",
    [
        "release_lock_on_cudamalloc:True",
        "pinned_use_background_threads:True",
        "pinned_num_register_threads:8,pinned_use_cuda_host_register:True",
        "graph_capture_record_stream_reuse:True",
        "throw_on_cudamalloc_oom:False",
    ],
)
def test_keys_that_cannot_matter_to_sizes_are_left_out(text: str) -> None:
    assert parse_cuda_settings(text) == CudaSettings()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("max_split_size_mb:19", "max_split_size_mb:19: .*too small, must be >= 20"),
        (
            "max_split_size_mb:50,large_segment_size_mb:100",
            "max_split_size_mb:50: .*too small, must be >= 100",
        ),
        ("max_non_split_rounding_mb:5", "max_non_split_rounding_mb:5: .*too small, must be >= 20"),
        ("large_segment_size_mb:10", "large_segment_size_mb:10: .*must be > 10 MB"),
        ("garbage_collection_threshold:0", r"garbage_collection_threshold:0: .*set it in \(0.0, 1.0\)"),
        ("garbage_collection_threshold:1", r"garbage_collection_threshold:1: .*set it in \(0.0, 1.0\)"),
        ("garbage_collection_threshold:nan", "'nan' is not a number"),
        ("per_process_memory_fraction:1.5", r"per_process_memory_fraction:1.5: .*set it in \[0.0, 1.0\]"),
        ("roundup_power2_divisions:3", "roundup_power2_divisions:3: .*the divisions has to be power of 2"),
        ("roundup_power2_divisions:0", "roundup_power2_divisions:0: .*the divisions has to be power of 2"),
        ("roundup_power2_divisions:[256:3]", "roundup_power2_divisions:3: .*the divisions"),
        (
            "roundup_power2_divisions:[3:2]",
            "roundup_power2_divisions:3: .*the intervals have to be power of 2",
        ),
        ("roundup_power2_divisions:[64]", "'' is not a whole number"),
        (
            "expandable_segments:true",
            "Expected 'True' or 'False' at index 2 in ConfigTokenizer but got 'true'",
        ),
        ("release_lock_on_cudamalloc:1", "Expected 'True' or 'False' at index 2"),
        ("pinned_num_register_threads:7", "pinned_num_register_threads:7: .*has to be power of 2"),
        ("pinned_num_register_threads:256", "threads should be less than or equal to 128"),
        ("pinned_reserve_segment_size_mb:0", "segment size has to be greater than 0"),
        ("backend:jemalloc", "Unknown allocator backend, options are native and cudaMallocAsync"),
        ("max_split_size_mb:30GB", "'30GB' is not a whole number"),
        ("max_split_size_mb:-5", "'-5' is not a whole number"),
        ("max_split_size_mb=30", "cannot read 'max_split_size_mb=30'"),
        ("expandable_segments:True,,", "cannot read ','"),
        ("roundup_power2_divisions:[64:2", "cannot read"),
        ("max_split_size:128", r"'max_split_size'.*nearest: max_split_size_mb"),
        ("foo:1", r"'foo' in .* Write key:value,key:value, for example .*expandable_segments:True$"),
        ("expandable_segment:True", r"'expandable_segment'.*nearest: expandable_segments"),
    ],
)
def test_a_refusal_names_the_users_own_value(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        parse_cuda_settings(text)


@pytest.mark.parametrize("text", ["backend:cudaMallocAsync", "throw_on_cudamalloc_oom:True"])
def test_what_replaces_the_modelled_rules_is_unsupported_by_name(text: str) -> None:
    with pytest.raises(UnsupportedError, match=text):
        parse_cuda_settings(text)


def test_settings_made_in_code_meet_the_same_limits() -> None:
    with pytest.raises(UsageError, match=r"max_split_size_mb:1: .*too small"):
        CudaSettings(max_split_bytes=MIB)


def test_only_what_differs_from_the_defaults_is_written() -> None:
    assert format_cuda_settings(CudaSettings()) == ""
    text = "max_split_size_mb:64,garbage_collection_threshold:0.8,expandable_segments:True"
    assert format_cuda_settings(parse_cuda_settings(text)) == text


@pytest.mark.parametrize(
    "text",
    [
        "max_split_size_mb:19",
        "max_split_size_mb:20",
        "max_split_size_mb:50,large_segment_size_mb:100",
        "large_segment_size_mb:12,max_split_size_mb:15",
        "max_non_split_rounding_mb:19",
        "large_segment_size_mb:30,max_non_split_rounding_mb:25",
        "large_segment_size_mb:10",
        "large_segment_size_mb:11",
        "garbage_collection_threshold:0",
        "garbage_collection_threshold:0.001",
        "garbage_collection_threshold:1",
        "expandable_segments:False",
        "expandable_segments:true",
        "max_split_size_mb:200,roundup_power2_divisions:[256:1,512:2],expandable_segments:yes",
        "pinned_use_background_threads:yes",
        "roundup_power2_divisions:0",
        "roundup_power2_divisions:[256:0]",
        "roundup_power2_divisions:[256:3,256:4]",
        "roundup_power2_divisions:[3:2]",
        "roundup_power2_divisions:[64:2,]",
        "expandable_segments:True,",
        "expandable_segments:True,,",
    ],
)
def test_the_installed_torch_refuses_the_same_in_the_same_words(text: str) -> None:
    torch = pytest.importorskip("torch")
    set_allocator = torch._C._accelerator_setAllocatorSettings
    theirs = ours = ""
    try:
        set_allocator(text)
    except (RuntimeError, ValueError) as error:
        theirs = str(error).splitlines()[0].strip()
    finally:  # torch keeps some values from one call to the next
        set_allocator("large_segment_size_mb:20,max_non_split_rounding_mb:20,expandable_segments:False")
    try:
        parse_cuda_settings(text)
    except UsageError as error:
        ours = str(error)
    assert bool(ours) == bool(theirs)
    if "INTERNAL ASSERT" not in theirs:  # what it cannot read at all, torch says in words for itself
        assert theirs in ours
