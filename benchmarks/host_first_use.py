"""What the first use of a library adds to resident memory: the constants of memgauge/host.py.

    python benchmarks/host_first_use.py

Prints the growth in MiB beyond what torch's own allocator was asked for.
"""

from __future__ import annotations

import torch

from memgauge.frameworks.torch.bare import resident_bytes
from memgauge.units import MIB


class Growth:
    """Resident memory since the last question, tensors left out."""

    def __init__(self) -> None:
        self._before = resident_bytes()

    def say(self, what: str, tensor_bytes: int = 0) -> None:
        """Print the growth since the last call, less the tensors made since."""
        now = resident_bytes()
        print(f"{what:40s} {(now - self._before - tensor_bytes) / MIB:+8.1f} MiB")
        self._before = now


def main() -> None:
    """Use one library after the other for the first time."""
    parameter = torch.nn.Parameter(torch.zeros(4))
    growth = Growth()
    torch.optim.Adam([parameter])
    growth.say("optimizer: imports torch._dynamo")
    left, right = torch.randn(512, 4096), torch.randn(4096, 4096)
    growth.say("(tensors)", left.nbytes + right.nbytes)
    product = left @ right
    growth.say("matmul: MKL's buffers", product.nbytes)
    images = torch.randn(8, 64, 32, 32, requires_grad=True)
    weight = torch.randn(64, 64, 3, 3, requires_grad=True)
    growth.say("(tensors)", images.nbytes + weight.nbytes)
    torch.nn.functional.conv2d(images, weight).sum().backward()
    growth.say("convolution forward and backward: oneDNN", images.nbytes + weight.nbytes)
    for channels in range(16, 16 * 41, 16):
        images = torch.randn(2, 16, 14, 14, requires_grad=True)
        weight = torch.randn(channels, 16, 3, 3, requires_grad=True)
        torch.nn.functional.conv2d(images, weight, padding=1).sum().backward()
    growth.say("40 more convolutions, each of its own shape")


if __name__ == "__main__":
    main()
