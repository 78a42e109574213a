"""Training steps from computer vision."""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn as nn
import torch.nn.functional as F

from memgauge.workload import Workload


def plain_cnn() -> Workload:
    """Convolution, pooling and two linear layers on CIFAR-like images, SGD."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv1 = nn.Conv2d(3, 32, 3, padding=1)
            self.conv2 = nn.Conv2d(32, 64, 3, padding=1)
            self.pool = nn.MaxPool2d(2, 2)
            self.drop = nn.Dropout(0.25)
            self.fc1 = nn.Linear(64 * 8 * 8, 512)
            self.fc2 = nn.Linear(512, 10)

        def forward(self, x):
            x = self.pool(F.relu(self.conv1(x)))
            x = self.pool(F.relu(self.conv2(x)))
            x = torch.flatten(self.drop(x), 1)
            x = F.relu(self.fc1(x))
            return self.fc2(x)

    criterion = nn.CrossEntropyLoss()

    def build():
        net = Net()
        return net, torch.optim.SGD(net.parameters(), lr=0.01)

    def batch():
        return torch.randn(128, 3, 32, 32), torch.randint(0, 10, (128,))

    def step(net, optimizer, data):
        inputs, labels = data
        optimizer.zero_grad()
        outputs = net(inputs)
        loss = criterion(outputs, labels)
        loss.backward()
        optimizer.step()
        return loss.item()

    return Workload(build=build, batch=batch, step=step)


def resnet() -> Workload:
    """Residual blocks with batch norm and projected skips, SGD with momentum."""

    class BasicBlock(nn.Module):
        def __init__(self, inplanes, planes, stride=1):
            super().__init__()
            self.conv1 = nn.Conv2d(inplanes, planes, 3, stride, 1, bias=False)
            self.bn1 = nn.BatchNorm2d(planes)
            self.relu = nn.ReLU(inplace=True)
            self.conv2 = nn.Conv2d(planes, planes, 3, 1, 1, bias=False)
            self.bn2 = nn.BatchNorm2d(planes)
            self.downsample = None
            if stride != 1 or inplanes != planes:
                self.downsample = nn.Sequential(
                    nn.Conv2d(inplanes, planes, 1, stride, bias=False), nn.BatchNorm2d(planes)
                )

        def forward(self, x):
            identity = x if self.downsample is None else self.downsample(x)
            out = self.relu(self.bn1(self.conv1(x)))
            out = self.bn2(self.conv2(out))
            out += identity
            return self.relu(out)

    def make():
        layers = [nn.Conv2d(3, 32, 7, 2, 3, bias=False), nn.BatchNorm2d(32), nn.ReLU(inplace=True)]
        layers += [nn.MaxPool2d(3, 2, 1), BasicBlock(32, 32), BasicBlock(32, 32)]
        for width in (64, 128, 256):
            layers += [BasicBlock(width // 2, width, 2), BasicBlock(width, width)]
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 100))

    def build():
        model = make()
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4, nesterov=True)
        return model, optimizer

    def batch():
        return torch.randn(12, 3, 144, 144), torch.randint(100, (12,))

    def step(model, optimizer, batch):
        images, target = batch
        output = model(images)
        loss = F.cross_entropy(output, target, label_smoothing=0.1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return Workload(build=build, batch=batch, step=step)


def densenet() -> Workload:
    """Every layer sees the concatenation of all before it, SGD with momentum."""

    class DenseLayer(nn.Sequential):
        def __init__(self, channels, growth):
            inner = 4 * growth
            super().__init__(
                nn.BatchNorm2d(channels), nn.ReLU(), nn.Conv2d(channels, inner, 1, bias=False),
                nn.BatchNorm2d(inner), nn.ReLU(), nn.Conv2d(inner, growth, 3, padding=1, bias=False),
            )  # fmt: skip

    class DenseBlock(nn.Module):
        def __init__(self, layers, channels, growth):
            super().__init__()
            self.layers = nn.ModuleList(DenseLayer(channels + i * growth, growth) for i in range(layers))

        def forward(self, x):
            features = [x]
            for layer in self.layers:
                features.append(layer(torch.cat(features, 1)))
            return torch.cat(features, 1)

    class DenseNet(nn.Module):
        def __init__(self, growth=12, depth=5, classes=100):
            super().__init__()
            channels = 2 * growth
            parts = [nn.Conv2d(3, channels, 3, padding=1, bias=False)]
            for i in range(3):
                parts.append(DenseBlock(depth, channels, growth))
                channels += depth * growth
                if i < 2:
                    parts += [nn.BatchNorm2d(channels), nn.ReLU(inplace=True)]
                    parts += [nn.Conv2d(channels, channels // 2, 1, bias=False), nn.AvgPool2d(2)]
                    channels //= 2
            self.features = nn.Sequential(*parts, nn.BatchNorm2d(channels))
            self.classifier = nn.Linear(channels, classes)

        def forward(self, x):
            out = F.relu(self.features(x), inplace=True)
            return self.classifier(out.mean(dim=(2, 3)))

    def build():
        model = DenseNet()
        return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def batch():
        return torch.rand(48, 3, 32, 32), torch.randint(0, 100, (48,))

    def step(model, optimizer, batch):
        x, y = batch
        loss = F.nll_loss(F.log_softmax(model(x), dim=1), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Workload(build=build, batch=batch, step=step)


def unet() -> Workload:
    """U-Net with transposed convolutions, skip concatenation and a Dice loss, Adam."""

    def double_conv(inside, outside):
        return nn.Sequential(
            nn.Conv2d(inside, outside, 3, padding=1), nn.BatchNorm2d(outside), nn.ReLU(inplace=True),
            nn.Conv2d(outside, outside, 3, padding=1), nn.BatchNorm2d(outside), nn.ReLU(inplace=True),
        )  # fmt: skip

    class UNet(nn.Module):
        def __init__(self, widths=(16, 32, 64, 128)):
            super().__init__()
            self.downs = nn.ModuleList()
            channels = 1
            for width in widths[:-1]:
                self.downs.append(double_conv(channels, width))
                channels = width
            self.bottom = double_conv(channels, widths[-1])
            self.ups, self.merges = nn.ModuleList(), nn.ModuleList()
            for width in reversed(widths[:-1]):
                self.ups.append(nn.ConvTranspose2d(2 * width, width, 2, stride=2))
                self.merges.append(double_conv(2 * width, width))
            self.head = nn.Conv2d(widths[0], 1, 1)

        def forward(self, x):
            skips = []
            for down in self.downs:
                x = down(x)
                skips.append(x)
                x = F.max_pool2d(x, 2)
            x = self.bottom(x)
            for up, merge in zip(self.ups, self.merges, strict=True):
                x = torch.cat([skips.pop(), up(x)], dim=1)
                x = merge(x)
            return self.head(x)

    def dice_loss(logits, target, eps=1.0):
        p = torch.sigmoid(logits)
        overlap = (p * target).sum(dim=(1, 2, 3))
        return 1 - ((2 * overlap + eps) / (p.sum((1, 2, 3)) + target.sum((1, 2, 3)) + eps)).mean()

    def build():
        model = UNet()
        return model, torch.optim.Adam(model.parameters(), lr=1e-4)

    def batch():
        return torch.randn(3, 1, 144, 144), (torch.rand(3, 1, 144, 144) > 0.5).float()

    def step(model, optimizer, batch):
        image, mask = batch
        logits = model(image)
        loss = F.binary_cross_entropy_with_logits(logits, mask) + dice_loss(logits, mask)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        return {"loss": loss.item()}

    return Workload(build=build, batch=batch, step=step)


def mobilenet() -> Workload:
    """Inverted residuals with depthwise convolution, squeeze-and-excite and hardswish, RMSprop."""

    class SqueezeExcite(nn.Module):
        def __init__(self, channels):
            super().__init__()
            self.fc1 = nn.Conv2d(channels, channels // 4, 1)
            self.fc2 = nn.Conv2d(channels // 4, channels, 1)

        def forward(self, x):
            s = F.adaptive_avg_pool2d(x, 1)
            return x * F.hardsigmoid(self.fc2(F.relu(self.fc1(s))), inplace=True)

    class InvertedResidual(nn.Module):
        def __init__(self, inp, out, expand, stride):
            super().__init__()
            hidden = inp * expand
            self.use_res = stride == 1 and inp == out
            self.block = nn.Sequential(
                nn.Conv2d(inp, hidden, 1, bias=False), nn.BatchNorm2d(hidden), nn.Hardswish(inplace=True),
                nn.Conv2d(hidden, hidden, 3, stride, 1, groups=hidden, bias=False),
                nn.BatchNorm2d(hidden), SqueezeExcite(hidden), nn.Hardswish(inplace=True),
                nn.Conv2d(hidden, out, 1, bias=False), nn.BatchNorm2d(out),
            )  # fmt: skip

        def forward(self, x):
            return x + self.block(x) if self.use_res else self.block(x)

    def build():
        plan = [(16, 16, 2, 1), (16, 24, 4, 2), (24, 24, 4, 1), (24, 40, 4, 2), (40, 40, 4, 1)]
        model = nn.Sequential(
            nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.Hardswish(inplace=True),
            *(InvertedResidual(*row) for row in plan), InvertedResidual(40, 96, 4, 2),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(96, 256), nn.Hardswish(), nn.Dropout(0.2),
            nn.Linear(256, 1000),
        )  # fmt: skip
        return model, torch.optim.RMSprop(model.parameters(), lr=0.016, alpha=0.9, momentum=0.9, eps=0.0316)

    def batch():
        return torch.randn(16, 3, 128, 128), torch.randint(0, 1000, (16,))

    def step(model, optimizer, batch):
        x, y = batch
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()

    return Workload(build=build, batch=batch, step=step)


def convnext() -> Workload:
    """ConvNeXt blocks: channels-last permutes, layer scale and stochastic depth, AdamW."""

    class DropPath(nn.Module):
        def __init__(self, p):
            super().__init__()
            self.p = p

        def forward(self, x):
            if self.p == 0.0 or not self.training:
                return x
            keep = 1 - self.p
            mask = x.new_empty((x.shape[0],) + (1,) * (x.ndim - 1)).bernoulli_(keep)
            return x * mask.div_(keep)

    class LayerNorm2d(nn.LayerNorm):
        def forward(self, x):
            x = x.permute(0, 2, 3, 1)
            x = F.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)
            return x.permute(0, 3, 1, 2)

    class Block(nn.Module):
        def __init__(self, dim, drop_path):
            super().__init__()
            self.dwconv = nn.Conv2d(dim, dim, 7, padding=3, groups=dim)
            self.norm = nn.LayerNorm(dim, eps=1e-6)
            self.pwconv1 = nn.Linear(dim, 4 * dim)
            self.act = nn.GELU()
            self.pwconv2 = nn.Linear(4 * dim, dim)
            self.gamma = nn.Parameter(1e-6 * torch.ones(dim))
            self.drop_path = DropPath(drop_path)

        def forward(self, x):
            y = self.dwconv(x).permute(0, 2, 3, 1)
            y = self.pwconv2(self.act(self.pwconv1(self.norm(y))))
            y = (self.gamma * y).permute(0, 3, 1, 2)
            return x + self.drop_path(y)

    class ConvNeXt(nn.Module):
        def __init__(self, depths=(1, 1, 3, 1), dims=(32, 64, 128, 256), drop_path=0.1):
            super().__init__()
            rates = torch.linspace(0, drop_path, sum(depths)).tolist()
            stages, channels, at = [], 3, 0
            for i, (depth, dim) in enumerate(zip(depths, dims, strict=True)):
                if i == 0:
                    stages += [nn.Conv2d(channels, dim, 4, 4), LayerNorm2d(dim)]
                else:
                    stages += [LayerNorm2d(channels), nn.Conv2d(channels, dim, 2, 2)]
                stages += [Block(dim, rates[at + j]) for j in range(depth)]
                channels, at = dim, at + depth
            self.stages = nn.Sequential(*stages)
            self.norm = nn.LayerNorm(channels)
            self.head = nn.Linear(channels, 1000)

        def forward(self, x):
            return self.head(self.norm(self.stages(x).mean([-2, -1])))

    def build():
        model = ConvNeXt()
        return model, torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=0.05)

    def batch():
        return torch.randn(16, 3, 160, 160), torch.randint(1000, (16,))

    def step(model, opt, batch):
        images, labels = batch
        loss = F.cross_entropy(model(images), labels, label_smoothing=0.1)
        opt.zero_grad()
        loss.backward()
        opt.step()

    return Workload(build=build, batch=batch, step=step)


def video_conv3d() -> Workload:
    """3-D convolutions over short clips, Adam."""

    class C3D(nn.Module):
        def __init__(self, num_classes):
            super().__init__()
            self.conv1 = nn.Conv3d(3, 16, kernel_size=3, padding=1)
            self.pool1 = nn.MaxPool3d((1, 2, 2))
            self.conv2 = nn.Conv3d(16, 32, 3, padding=1)
            self.bn = nn.BatchNorm3d(32)
            self.pool2 = nn.MaxPool3d(2)
            self.conv3 = nn.Conv3d(32, 64, 3, padding=1)
            self.fc = nn.Linear(64, num_classes)

        def forward(self, clip):
            h = self.pool1(torch.relu(self.conv1(clip)))
            h = self.pool2(torch.relu(self.bn(self.conv2(h))))
            h = torch.relu(self.conv3(h))
            return self.fc(F.adaptive_avg_pool3d(h, 1).flatten(1))

    def build():
        model = C3D(51)
        return model, torch.optim.Adam(model.parameters())

    def batch():
        return {"clip": torch.rand(4, 3, 8, 64, 64), "label": torch.randint(51, (4,))}

    def step(model, optimizer, batch):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(batch["clip"]), batch["label"])
        loss.backward()
        optimizer.step()
        return float(loss)

    return Workload(build=build, batch=batch, step=step)


def channels_last_cnn() -> Workload:
    """A model and its images in the channels-last memory format, SGD with foreach."""

    def conv(inside, outside, stride=1):
        return nn.Sequential(
            nn.Conv2d(inside, outside, 3, stride, 1, bias=False), nn.BatchNorm2d(outside), nn.SiLU(True)
        )

    def build():
        model = nn.Sequential(
            conv(3, 32, 2), conv(32, 32), conv(32, 64, 2), conv(64, 64), conv(64, 128, 2), conv(128, 128),
            nn.AdaptiveAvgPool2d((1, 1)), nn.Flatten(), nn.Linear(128, 100),
        )  # fmt: skip
        model = model.to(memory_format=torch.channels_last)
        return model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, foreach=True)

    def batch():
        return torch.randn(16, 3, 128, 128), torch.randint(0, 100, (16,))

    def step(model, optimizer, batch):
        images, labels = batch
        images = images.contiguous(memory_format=torch.channels_last)
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return Workload(build=build, batch=batch, step=step)


def pyramid_segmentation() -> Workload:
    """Feature pyramid with group norm, bilinear upsampling and ignored pixels, SGD with a schedule."""

    def block(inside, outside, stride):
        return nn.Sequential(
            nn.Conv2d(inside, outside, 3, stride, 1), nn.GroupNorm(8, outside), nn.ReLU(),
            nn.Conv2d(outside, outside, 3, 1, 1), nn.GroupNorm(8, outside), nn.ReLU(),
        )  # fmt: skip

    class FPN(nn.Module):
        def __init__(self, classes=21):
            super().__init__()
            self.stages = nn.ModuleList([block(3, 24, 2), block(24, 48, 2), block(48, 96, 2)])
            self.lateral = nn.ModuleList([nn.Conv2d(c, 64, 1) for c in (24, 48, 96)])
            self.smooth = nn.ModuleList([nn.Conv2d(64, 32, 3, padding=1) for _ in range(3)])
            self.classify = nn.Conv2d(32, classes, 1)

        def forward(self, x):
            size, levels = x.shape[-2:], []
            for stage, lateral in zip(self.stages, self.lateral, strict=True):
                x = stage(x)
                levels.append(lateral(x))
            for i in (1, 0):
                up = F.interpolate(levels[i + 1], size=levels[i].shape[-2:], mode="nearest")
                levels[i] = levels[i] + up
            target = levels[0].shape[-2:]
            merged = sum(
                F.interpolate(s(f), size=target, mode="bilinear", align_corners=False)
                for s, f in zip(self.smooth, levels, strict=True)
            )
            return F.interpolate(self.classify(merged), size=size, mode="bilinear", align_corners=False)

    def build():
        model = FPN()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
        schedule = torch.optim.lr_scheduler.PolynomialLR(optimizer, total_iters=100, power=0.9)
        return model, optimizer, schedule

    def batch():
        labels = torch.randint(0, 21, (4, 160, 160))
        labels[torch.rand(4, 160, 160) < 0.05] = 255
        return torch.randn(4, 3, 160, 160), labels

    def step(model, optimizer, schedule, batch):
        x, y = batch
        loss = F.cross_entropy(model(x), y, ignore_index=255)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()

    return Workload(build=build, batch=batch, step=step)


def vision_transformer() -> Workload:
    """Patches, a class token and nn.MultiheadAttention, AdamW."""

    class Block(nn.Module):
        def __init__(self, dim, heads):
            super().__init__()
            self.ln_1 = nn.LayerNorm(dim)
            self.attention = nn.MultiheadAttention(dim, heads, dropout=0.1, batch_first=True)
            self.ln_2 = nn.LayerNorm(dim)
            self.mlp = nn.Sequential(
                nn.Linear(dim, 4 * dim), nn.GELU(), nn.Dropout(0.1), nn.Linear(4 * dim, dim), nn.Dropout(0.1)
            )

        def forward(self, x):
            y = self.ln_1(x)
            y, _ = self.attention(y, y, y, need_weights=False)
            x = x + y
            return x + self.mlp(self.ln_2(x))

    class ViT(nn.Module):
        def __init__(self, image=128, patch=16, dim=192, depth=4, heads=3, classes=1000):
            super().__init__()
            self.patch = nn.Conv2d(3, dim, patch, patch)
            self.cls = nn.Parameter(torch.zeros(1, 1, dim))
            self.position = nn.Parameter(torch.randn(1, (image // patch) ** 2 + 1, dim) * 0.02)
            self.blocks = nn.Sequential(*[Block(dim, heads) for _ in range(depth)])
            self.norm = nn.LayerNorm(dim)
            self.head = nn.Linear(dim, classes)

        def forward(self, x):
            x = self.patch(x).flatten(2).transpose(1, 2)
            x = torch.cat([self.cls.expand(x.size(0), -1, -1), x], dim=1) + self.position
            return self.head(self.norm(self.blocks(x))[:, 0])

    def build():
        model = ViT()
        return model, torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.3)

    def batch():
        return torch.randn(12, 3, 128, 128), torch.randint(0, 1000, (12,))

    def step(model, optimizer, batch):
        x, y = batch
        lam = 0.7  # mixup
        order = torch.randperm(x.size(0), device=x.device)
        out = model(lam * x + (1 - lam) * x[order])
        loss = lam * F.cross_entropy(out, y) + (1 - lam) * F.cross_entropy(out, y[order])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss

    return Workload(build=build, batch=batch, step=step)


def super_resolution() -> Workload:
    """Residual blocks at low resolution and a pixel shuffle at the end, Adam."""

    class EDSR(nn.Module):
        def __init__(self, features=32, blocks=6, scale=2):
            super().__init__()
            self.head = nn.Conv2d(3, features, 3, padding=1)
            self.body = nn.ModuleList(
                nn.Sequential(
                    nn.Conv2d(features, features, 3, padding=1),
                    nn.PReLU(),
                    nn.Conv2d(features, features, 3, padding=1),
                )
                for _ in range(blocks)
            )
            self.tail = nn.Sequential(
                nn.Conv2d(features, features * scale**2, 3, padding=1),
                nn.PixelShuffle(scale),
                nn.Conv2d(features, 3, 3, padding=1),
            )

        def forward(self, x):
            x = first = self.head(x)
            for block in self.body:
                x = x + 0.1 * block(x)
            return self.tail(x + first)

    def build():
        model = EDSR()
        return model, torch.optim.Adam(model.parameters(), lr=1e-4, betas=(0.9, 0.99))

    def batch():
        sharp = torch.rand(6, 3, 128, 128)
        return F.interpolate(sharp, scale_factor=0.5, mode="bicubic", antialias=True), sharp

    def step(model, optimizer, batch):
        small, sharp = batch
        loss = F.l1_loss(model(small), sharp)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return Workload(build=build, batch=batch, step=step)


def spatial_transformer() -> Workload:
    """A localisation net that warps its input with affine_grid and grid_sample, SGD."""

    class STN(nn.Module):
        def __init__(self):
            super().__init__()
            self.localization = nn.Sequential(
                nn.Conv2d(1, 8, 7), nn.MaxPool2d(2), nn.ReLU(True),
                nn.Conv2d(8, 10, 5), nn.MaxPool2d(2), nn.ReLU(True),
            )  # fmt: skip
            self.fc_loc = nn.Sequential(nn.Linear(10 * 12 * 12, 32), nn.ReLU(True), nn.Linear(32, 6))
            self.fc_loc[2].weight.data.zero_()
            self.fc_loc[2].bias.data.copy_(torch.tensor([1, 0, 0, 0, 1, 0], dtype=torch.float))
            self.conv1 = nn.Conv2d(1, 16, 5)
            self.conv2 = nn.Conv2d(16, 32, 5)
            self.conv2_drop = nn.Dropout2d()
            self.fc = nn.Linear(32 * 13 * 13, 10)

        def forward(self, x):
            theta = self.fc_loc(self.localization(x).view(-1, 10 * 12 * 12)).view(-1, 2, 3)
            x = F.grid_sample(x, F.affine_grid(theta, x.size(), align_corners=False), align_corners=False)
            x = F.relu(F.max_pool2d(self.conv1(x), 2))
            x = F.relu(F.max_pool2d(self.conv2_drop(self.conv2(x)), 2))
            return F.log_softmax(self.fc(x.flatten(1)), dim=1)

    def build():
        model = STN()
        return model, torch.optim.SGD(model.parameters(), lr=0.01)

    def batch():
        return torch.randn(96, 1, 64, 64), torch.randint(0, 10, (96,))

    def step(model, optimizer, batch):
        data, target = batch
        optimizer.zero_grad()
        loss = F.nll_loss(model(data), target)
        loss.backward()
        optimizer.step()

    return Workload(build=build, batch=batch, step=step)


def detector() -> Workload:
    """A dense detector: focal loss everywhere, box loss at the positive cells only, AdamW."""
    images, positives = 8, 12

    class Detector(nn.Module):
        def __init__(self, classes=20):
            super().__init__()
            widths = (3, 16, 32, 64, 64)
            self.backbone = nn.Sequential(
                *(
                    nn.Sequential(nn.Conv2d(a, b, 3, 2, 1), nn.BatchNorm2d(b), nn.LeakyReLU(0.1))
                    for a, b in pairwise(widths)
                )
            )
            self.scores = nn.Sequential(nn.Conv2d(64, 64, 3, 1, 1), nn.ReLU(), nn.Conv2d(64, classes, 1))
            self.boxes = nn.Sequential(nn.Conv2d(64, 64, 3, 1, 1), nn.ReLU(), nn.Conv2d(64, 4, 1))

        def forward(self, x):
            features = self.backbone(x)
            return self.scores(features), self.boxes(features).exp()

    def focal_loss(logits, target, alpha=0.25, gamma=2.0):
        p = logits.sigmoid()
        bce = F.binary_cross_entropy_with_logits(logits, target, reduction="none")
        p_t = p * target + (1 - p) * (1 - target)
        alpha_t = alpha * target + (1 - alpha) * (1 - target)
        return (alpha_t * (1 - p_t) ** gamma * bce).sum()

    def build():
        model = Detector()
        return model, torch.optim.AdamW(model.parameters(), lr=1e-4)

    def batch():
        cells = torch.rand(images, 16 * 16).topk(positives).indices
        label = torch.full((images, 16 * 16), -1)
        label.scatter_(1, cells, torch.randint(0, 20, (images, positives)))
        return torch.randn(images, 3, 256, 256), label.view(images, 16, 16), torch.rand(images, 16, 16, 4)

    def step(model, optimizer, batch):
        x, label, box = batch
        scores, boxes = model(x)
        scores, boxes = scores.permute(0, 2, 3, 1), boxes.permute(0, 2, 3, 1)
        positive = label >= 0
        target = torch.zeros_like(scores)
        target[positive, label[positive]] = 1.0
        loss_cls = focal_loss(scores, target) / positive.sum().clamp(min=1)
        loss_box = F.smooth_l1_loss(boxes[positive], box[positive])
        loss = loss_cls + 2.0 * loss_box
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return Workload(build=build, batch=batch, step=step, values={"nonzero": images * positives})


def siamese_triplets() -> Workload:
    """One network called on anchor, positive and negative, triplet loss, Adagrad."""

    def build():
        embed = nn.Sequential(
            nn.Conv2d(1, 32, 5), nn.ReLU(), nn.AvgPool2d(2), nn.Conv2d(32, 64, 5), nn.ReLU(), nn.AvgPool2d(2),
            nn.Flatten(), nn.LazyLinear(256), nn.ReLU(), nn.Linear(256, 64),
        )  # fmt: skip
        embed(torch.zeros(1, 1, 48, 48))  # the lazy layer learns its shape
        return embed, torch.optim.Adagrad(embed.parameters(), lr=0.01)

    triplet = nn.TripletMarginLoss(margin=0.5)

    def batch():
        return tuple(torch.randn(32, 1, 48, 48) for _ in range(3))

    def step(embed, optimizer, batch):
        anchor, positive, negative = (F.normalize(embed(x)) for x in batch)
        loss = triplet(anchor, positive, negative)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    return Workload(build=build, batch=batch, step=step)


def style_transfer() -> Workload:
    """The picture is the parameter: Gram matrices of a frozen net and L-BFGS with a closure."""

    class Picture(nn.Module):
        def __init__(self):
            super().__init__()
            self.pixels = nn.Parameter(torch.rand(1, 3, 160, 160))

    def build():
        vgg = nn.Sequential()
        for i, (a, b) in enumerate([(3, 24), (24, 24), (24, 48), (48, 48), (48, 96)]):
            vgg.add_module(f"conv{i}", nn.Conv2d(a, b, 3, padding=1))
            nn.init.kaiming_normal_(vgg[-1].weight)
            vgg.add_module(f"relu{i}", nn.ReLU())
            if i % 2:
                vgg.add_module(f"pool{i}", nn.MaxPool2d(2))
        vgg.eval().requires_grad_(False)
        picture = Picture()
        return vgg, picture, torch.optim.LBFGS([picture.pixels], max_iter=4, history_size=10)

    def batch():
        return torch.rand(1, 3, 160, 160), torch.rand(1, 3, 160, 160)

    def gram(f):
        b, c, h, w = f.shape
        f = f.view(b, c, h * w)
        return f @ f.transpose(1, 2) / (c * h * w)

    def features(vgg, x):
        found = []
        for layer in vgg:
            x = layer(x)
            if isinstance(layer, nn.ReLU):
                found.append(x)
        return found

    def step(vgg, picture, optimizer, batch):
        content, style = batch
        with torch.no_grad():
            wanted = features(vgg, content)[-1]
            grams = [gram(f) for f in features(vgg, style)]

        def closure():
            optimizer.zero_grad()
            found = features(vgg, picture.pixels)
            loss = F.mse_loss(found[-1], wanted)
            for f, g in zip(found, grams, strict=True):
                loss = loss + 1e6 * F.mse_loss(gram(f), g)
            loss.backward()
            return loss

        optimizer.step(closure)
        with torch.no_grad():
            picture.pixels.clamp_(0, 1)

    return Workload(build=build, batch=batch, step=step)


STEPS = (
    plain_cnn,
    resnet,
    densenet,
    unet,
    mobilenet,
    convnext,
    video_conv3d,
    channels_last_cnn,
    pyramid_segmentation,
    vision_transformer,
    super_resolution,
    spatial_transformer,
    detector,
    siamese_triplets,
    style_transfer,
)
