"""Classifiers of pictures that everybody knows, as torchvision defines them."""

from __future__ import annotations

from memgauge.arguments import TargetOptions
from memgauge.frameworks.torch.libraries import library_workload
from memgauge.workload import Workload


def alexnet(
    batch_size: int = 32,
    image_size: int = 224,
    optimizer: str = "adam",
    precision: str = "float32",
    checkpointing: bool = False,
    mode: str = "train",
) -> Workload:
    """AlexNet, 61,100,840 parameters.

    Source: Krizhevsky, "One weird trick for parallelizing convolutional neural networks" (2014), as in
    torchvision.
    """
    return _classifier("alexnet", batch_size, image_size, optimizer, precision, checkpointing, mode)


def vgg16(
    batch_size: int = 32,
    image_size: int = 224,
    optimizer: str = "adam",
    precision: str = "float32",
    checkpointing: bool = False,
    mode: str = "train",
) -> Workload:
    """VGG-16, 138,357,544 parameters.

    Source: Simonyan and Zisserman, "Very Deep Convolutional Networks" (2014), configuration D.
    """
    return _classifier("vgg16", batch_size, image_size, optimizer, precision, checkpointing, mode)


def googlenet(
    batch_size: int = 32,
    image_size: int = 224,
    optimizer: str = "adam",
    precision: str = "float32",
    checkpointing: bool = False,
    mode: str = "train",
) -> Workload:
    """GoogLeNet with its two auxiliary classifiers, 13,004,888 parameters.

    Source: Szegedy et al., "Going Deeper with Convolutions" (2014).
    """
    return _classifier("googlenet", batch_size, image_size, optimizer, precision, checkpointing, mode)


def resnet50(
    batch_size: int = 32,
    image_size: int = 224,
    optimizer: str = "adam",
    precision: str = "float32",
    checkpointing: bool = False,
    mode: str = "train",
) -> Workload:
    """ResNet-50 v1.5, 25,557,032 parameters.

    Source: He et al., "Deep Residual Learning" (2015), stride in the 3x3 convolution as in torchvision.
    """
    return _classifier("resnet50", batch_size, image_size, optimizer, precision, checkpointing, mode)


def vit_b16(
    batch_size: int = 32,
    image_size: int = 224,
    optimizer: str = "adam",
    precision: str = "float32",
    checkpointing: bool = False,
    mode: str = "train",
) -> Workload:
    """ViT-B/16, 86,567,656 parameters at 224 x 224.

    Source: Dosovitskiy et al., "An Image is Worth 16x16 Words" (2020).
    """
    return _classifier("vit_b_16", batch_size, image_size, optimizer, precision, checkpointing, mode)


def _classifier(
    name: str,
    batch_size: int,
    image_size: int,
    optimizer: str,
    precision: str,
    checkpointing: bool,
    mode: str,
) -> Workload:
    options = TargetOptions(
        batch_size=batch_size,
        image_size=image_size,
        optimizer=optimizer,
        precision=precision,
        checkpointing=checkpointing,
        mode=mode,
    )
    return library_workload("torchvision", name, options)
