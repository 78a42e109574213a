"""Training steps of models that make pictures, sound and samples."""

from __future__ import annotations

import itertools
import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

from memgauge.workload import Workload


def dcgan() -> Workload:
    """Generator and discriminator in turns, each with its own Adam."""
    latent = 100

    def weights_init(m):
        if isinstance(m, (nn.Conv2d, nn.ConvTranspose2d)):
            nn.init.normal_(m.weight.data, 0.0, 0.02)
        elif isinstance(m, nn.BatchNorm2d):
            nn.init.normal_(m.weight.data, 1.0, 0.02)
            nn.init.constant_(m.bias.data, 0)

    def build():
        generator = nn.Sequential(
            nn.ConvTranspose2d(latent, 128, 4, 1, 0, bias=False), nn.BatchNorm2d(128), nn.ReLU(True),
            nn.ConvTranspose2d(128, 64, 4, 2, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU(True),
            nn.ConvTranspose2d(64, 32, 4, 2, 1, bias=False), nn.BatchNorm2d(32), nn.ReLU(True),
            nn.ConvTranspose2d(32, 16, 4, 2, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU(True),
            nn.ConvTranspose2d(16, 3, 4, 2, 1, bias=False), nn.Tanh(),
        )  # fmt: skip
        discriminator = nn.Sequential(
            nn.Conv2d(3, 32, 4, 2, 1, bias=False), nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(32, 64, 4, 2, 1, bias=False), nn.BatchNorm2d(64), nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(64, 128, 4, 2, 1, bias=False), nn.BatchNorm2d(128), nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(128, 1, 8, 1, 0, bias=False), nn.Sigmoid(),
        )  # fmt: skip
        generator.apply(weights_init)
        discriminator.apply(weights_init)
        optimizer_d = torch.optim.Adam(discriminator.parameters(), lr=2e-4, betas=(0.5, 0.999))
        optimizer_g = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
        return generator, discriminator, optimizer_g, optimizer_d

    criterion = nn.BCELoss()

    def batch():
        return torch.rand(48, 3, 64, 64) * 2 - 1

    def step(netG, netD, optimizerG, optimizerD, real):
        # (1) maximize log(D(x)) + log(1 - D(G(z)))
        netD.zero_grad()
        label = torch.full((real.size(0),), 1.0, device=real.device)
        errD_real = criterion(netD(real).view(-1), label)
        errD_real.backward()
        noise = torch.randn(real.size(0), latent, 1, 1, device=real.device)
        fake = netG(noise)
        label.fill_(0.0)
        errD_fake = criterion(netD(fake.detach()).view(-1), label)
        errD_fake.backward()
        optimizerD.step()
        # (2) maximize log(D(G(z)))
        netG.zero_grad()
        label.fill_(1.0)
        errG = criterion(netD(fake).view(-1), label)
        errG.backward()
        optimizerG.step()
        return errD_real.item() + errD_fake.item(), errG.item()

    return Workload(build=build, batch=batch, step=step)


def wasserstein_gan() -> Workload:
    """Gradient penalty by create_graph, instance norm, two critic steps for each of the generator."""

    def build():
        generator = nn.Sequential(
            nn.Linear(64, 128 * 8 * 8), nn.ReLU(), nn.Unflatten(1, (128, 8, 8)),
            nn.Upsample(scale_factor=2), nn.Conv2d(128, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(),
            nn.Upsample(scale_factor=2), nn.Conv2d(64, 3, 3, padding=1), nn.Tanh(),
        )  # fmt: skip
        critic = nn.Sequential(
            nn.Conv2d(3, 32, 4, 2, 1), nn.LeakyReLU(0.2),
            nn.Conv2d(32, 64, 4, 2, 1), nn.InstanceNorm2d(64, affine=True), nn.LeakyReLU(0.2),
            nn.Conv2d(64, 128, 4, 2, 1), nn.InstanceNorm2d(128, affine=True), nn.LeakyReLU(0.2),
            nn.Flatten(), nn.Linear(128 * 4 * 4, 1),
        )  # fmt: skip
        opt_g = torch.optim.Adam(generator.parameters(), lr=1e-4, betas=(0.0, 0.9))
        opt_c = torch.optim.Adam(critic.parameters(), lr=1e-4, betas=(0.0, 0.9))
        return generator, critic, opt_g, opt_c

    def batch():
        return torch.randn(32, 3, 32, 32)

    def gradient_penalty(critic, real, fake):
        alpha = torch.rand(real.size(0), 1, 1, 1, device=real.device)
        mixed = (alpha * real + (1 - alpha) * fake).requires_grad_(True)
        score = critic(mixed)
        (grad,) = torch.autograd.grad(
            score, mixed, torch.ones_like(score), create_graph=True, retain_graph=True
        )
        return ((grad.flatten(1).norm(2, dim=1) - 1) ** 2).mean()

    def step(generator, critic, opt_g, opt_c, real):
        for _ in range(2):
            with torch.no_grad():
                fake = generator(torch.randn(real.size(0), 64, device=real.device))
            loss_c = critic(fake).mean() - critic(real).mean() + 10 * gradient_penalty(critic, real, fake)
            opt_c.zero_grad()
            loss_c.backward()
            opt_c.step()
        for p in critic.parameters():
            p.requires_grad = False
        loss_g = -critic(generator(torch.randn(real.size(0), 64, device=real.device))).mean()
        opt_g.zero_grad()
        loss_g.backward()
        opt_g.step()
        for p in critic.parameters():
            p.requires_grad = True

    return Workload(build=build, batch=batch, step=step)


def spectral_norm_gan() -> Workload:
    """A self-attention discriminator under spectral norm with the hinge loss."""

    class SelfAttention(nn.Module):
        def __init__(self, channels):
            super().__init__()
            self.q = spectral_norm(nn.Conv2d(channels, channels // 8, 1))
            self.k = spectral_norm(nn.Conv2d(channels, channels // 8, 1))
            self.v = spectral_norm(nn.Conv2d(channels, channels, 1))
            self.gamma = nn.Parameter(torch.zeros(1))

        def forward(self, x):
            q, k, v = self.q(x).flatten(2), self.k(x).flatten(2), self.v(x).flatten(2)
            attention = torch.bmm(q.transpose(1, 2), k).softmax(dim=-1)
            return x + self.gamma * torch.bmm(v, attention.transpose(1, 2)).view_as(x)

    def build():
        discriminator = nn.Sequential(
            spectral_norm(nn.Conv2d(3, 32, 3, 2, 1)), nn.LeakyReLU(0.1), SelfAttention(32),
            spectral_norm(nn.Conv2d(32, 64, 3, 2, 1)), nn.LeakyReLU(0.1),
            nn.Flatten(), spectral_norm(nn.Linear(64 * 12 * 12, 1)),
        )  # fmt: skip
        generator = nn.Sequential(
            nn.Linear(128, 64 * 12 * 12), nn.Unflatten(1, (64, 12, 12)), nn.BatchNorm2d(64), nn.ReLU(),
            nn.ConvTranspose2d(64, 32, 4, 2, 1), nn.BatchNorm2d(32), nn.ReLU(),
            nn.ConvTranspose2d(32, 3, 4, 2, 1), nn.Tanh(),
        )  # fmt: skip
        opt_d = torch.optim.Adam(discriminator.parameters(), 4e-4, (0.0, 0.9))
        opt_g = torch.optim.Adam(generator.parameters(), 1e-4, (0.0, 0.9))
        return generator, discriminator, opt_g, opt_d

    def batch():
        return torch.rand(16, 3, 48, 48), torch.randn(16, 128)

    def step(generator, discriminator, opt_g, opt_d, batch):
        real, noise = batch
        fake = generator(noise)
        opt_d.zero_grad()
        loss_d = F.relu(1 - discriminator(real)).mean() + F.relu(1 + discriminator(fake.detach())).mean()
        loss_d.backward()
        opt_d.step()
        opt_g.zero_grad()
        loss_g = -discriminator(fake).mean()
        loss_g.backward()
        opt_g.step()
        return {"d": loss_d.item(), "g": loss_g.item()}

    return Workload(build=build, batch=batch, step=step)


def cycle_gan() -> Workload:
    """Two generators and two discriminators, reflection padding, instance norm, chained parameters."""

    class ResBlock(nn.Module):
        def __init__(self, c):
            super().__init__()
            self.block = nn.Sequential(
                nn.ReflectionPad2d(1), nn.Conv2d(c, c, 3), nn.InstanceNorm2d(c), nn.ReLU(True),
                nn.ReflectionPad2d(1), nn.Conv2d(c, c, 3), nn.InstanceNorm2d(c),
            )  # fmt: skip

        def forward(self, x):
            return x + self.block(x)

    def make_generator():
        return nn.Sequential(
            nn.ReflectionPad2d(3), nn.Conv2d(3, 16, 7), nn.InstanceNorm2d(16), nn.ReLU(True),
            nn.Conv2d(16, 32, 3, 2, 1), nn.InstanceNorm2d(32), nn.ReLU(True), ResBlock(32), ResBlock(32),
            nn.ConvTranspose2d(32, 16, 3, 2, 1, output_padding=1), nn.InstanceNorm2d(16), nn.ReLU(True),
            nn.ReflectionPad2d(3), nn.Conv2d(16, 3, 7), nn.Tanh(),
        )  # fmt: skip

    def make_discriminator():
        return nn.Sequential(
            nn.Conv2d(3, 16, 4, 2, 1), nn.LeakyReLU(0.2, True),
            nn.Conv2d(16, 32, 4, 2, 1), nn.InstanceNorm2d(32), nn.LeakyReLU(0.2, True),
            nn.Conv2d(32, 1, 4, 1, 1),
        )  # fmt: skip

    def build():
        g_ab, g_ba, d_a, d_b = make_generator(), make_generator(), make_discriminator(), make_discriminator()
        opt_g = torch.optim.Adam(itertools.chain(g_ab.parameters(), g_ba.parameters()), lr=2e-4)
        opt_d = torch.optim.Adam(itertools.chain(d_a.parameters(), d_b.parameters()), lr=2e-4)
        return g_ab, g_ba, d_a, d_b, opt_g, opt_d

    def batch():
        return torch.rand(1, 3, 96, 96), torch.rand(1, 3, 96, 96)

    def real_or_fake(output, real):
        return F.mse_loss(output, torch.ones_like(output) if real else torch.zeros_like(output))

    def step(g_ab, g_ba, d_a, d_b, opt_g, opt_d, batch):
        a, b = batch
        for net in (d_a, d_b):
            net.requires_grad_(False)
        fake_b, fake_a = g_ab(a), g_ba(b)
        loss_gan = real_or_fake(d_b(fake_b), True) + real_or_fake(d_a(fake_a), True)
        loss_cycle = F.l1_loss(g_ba(fake_b), a) + F.l1_loss(g_ab(fake_a), b)
        loss_same = F.l1_loss(g_ab(b), b) + F.l1_loss(g_ba(a), a)
        opt_g.zero_grad()
        (loss_gan + 10 * loss_cycle + 5 * loss_same).backward()
        opt_g.step()
        for net in (d_a, d_b):
            net.requires_grad_(True)
        opt_d.zero_grad()
        for net, real, fake in ((d_a, a, fake_a), (d_b, b, fake_b)):
            loss = 0.5 * (real_or_fake(net(real), True) + real_or_fake(net(fake.detach()), False))
            loss.backward()
        opt_d.step()

    return Workload(build=build, batch=batch, step=step)


def vae() -> Workload:
    """A variational autoencoder on flat images, Adam."""

    class VAE(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc1 = nn.Linear(2304, 800)
            self.fc21 = nn.Linear(800, 20)
            self.fc22 = nn.Linear(800, 20)
            self.fc3 = nn.Linear(20, 800)
            self.fc4 = nn.Linear(800, 2304)

        def encode(self, x):
            h1 = F.relu(self.fc1(x))
            return self.fc21(h1), self.fc22(h1)

        def reparameterize(self, mu, logvar):
            std = torch.exp(0.5 * logvar)
            eps = torch.randn_like(std)
            return mu + eps * std

        def decode(self, z):
            return torch.sigmoid(self.fc4(F.relu(self.fc3(z))))

        def forward(self, x):
            mu, logvar = self.encode(x.view(-1, 2304))
            return self.decode(self.reparameterize(mu, logvar)), mu, logvar

    def loss_function(recon_x, x, mu, logvar):
        BCE = F.binary_cross_entropy(recon_x, x.view(-1, 2304), reduction="sum")
        KLD = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
        return BCE + KLD

    def build():
        model = VAE()
        return model, torch.optim.Adam(model.parameters(), lr=1e-3)

    def batch():
        return torch.rand(256, 1, 48, 48)

    def step(model, optimizer, data):
        model.train()
        optimizer.zero_grad()
        recon_batch, mu, logvar = model(data)
        loss = loss_function(recon_batch, data, mu, logvar)
        loss.backward()
        optimizer.step()
        return loss.item() / len(data)

    return Workload(build=build, batch=batch, step=step)


def vq_vae() -> Workload:
    """Nearest codebook entries, the straight-through trick, Adam with amsgrad."""

    class Quantizer(nn.Module):
        def __init__(self, entries=512, dim=32):
            super().__init__()
            self.codebook = nn.Embedding(entries, dim)
            self.codebook.weight.data.uniform_(-1 / entries, 1 / entries)

        def forward(self, z):
            flat = z.permute(0, 2, 3, 1).contiguous()
            distances = torch.cdist(flat.view(-1, flat.size(-1)), self.codebook.weight)
            codes = distances.argmin(dim=1)
            q = self.codebook(codes).view(flat.shape).permute(0, 3, 1, 2)
            loss = F.mse_loss(q, z.detach()) + 0.25 * F.mse_loss(q.detach(), z)
            used = codes.bincount(minlength=len(self.codebook.weight)) / len(codes)
            perplexity = torch.exp(-used @ torch.log(used + 1e-10))
            return z + (q - z).detach(), loss, perplexity

    class VQVAE(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = nn.Sequential(
                nn.Conv2d(3, 32, 4, 2, 1),
                nn.ReLU(),
                nn.Conv2d(32, 64, 4, 2, 1),
                nn.ReLU(),
                nn.Conv2d(64, 32, 1),
            )
            self.quantizer = Quantizer()
            self.decoder = nn.Sequential(
                nn.ConvTranspose2d(32, 64, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(64, 3, 4, 2, 1)
            )

        def forward(self, x):
            q, loss, perplexity = self.quantizer(self.encoder(x))
            return self.decoder(q), loss, perplexity

    def build():
        model = VQVAE()
        return model, torch.optim.Adam(model.parameters(), lr=1e-3, amsgrad=True)

    def batch():
        return torch.rand(32, 3, 64, 64)

    def step(model, optimizer, images):
        optimizer.zero_grad()
        reconstruction, vq_loss, perplexity = model(images)
        error = F.mse_loss(reconstruction, images) / 0.06
        (error + vq_loss).backward()
        optimizer.step()
        return error.item(), perplexity.item()

    return Workload(build=build, batch=batch, step=step)


def timestep_embedding(timesteps: torch.Tensor, dim: int) -> torch.Tensor:
    """Return sinusoids of the timesteps: (batch, dim)."""
    half = dim // 2
    freqs = torch.exp(
        -math.log(10000) * torch.arange(half, dtype=torch.float32, device=timesteps.device) / half
    )
    args = timesteps[:, None].float() * freqs[None]
    return torch.cat([torch.cos(args), torch.sin(args)], dim=-1)


class ConditionedBlock(nn.Module):
    """Group norm, SiLU, convolution, with the timestep added in between."""

    def __init__(self, inside: int, outside: int, emb: int = 128) -> None:
        super().__init__()
        self.in_layers = nn.Sequential(
            nn.GroupNorm(8, inside), nn.SiLU(), nn.Conv2d(inside, outside, 3, padding=1)
        )
        self.emb = nn.Linear(emb, outside)
        self.out_layers = nn.Sequential(
            nn.GroupNorm(8, outside), nn.SiLU(), nn.Dropout(0.1), nn.Conv2d(outside, outside, 3, padding=1)
        )
        self.skip = nn.Conv2d(inside, outside, 1) if inside != outside else nn.Identity()

    def forward(self, x: torch.Tensor, emb: torch.Tensor) -> torch.Tensor:
        """Return the block's output of the same height and width."""
        h = self.in_layers(x) + self.emb(F.silu(emb))[:, :, None, None]
        return self.skip(x) + self.out_layers(h)


class NoisePredictor(nn.Module):
    """A two-level U-Net that knows the timestep."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.width = width
        self.time = nn.Sequential(nn.Linear(width, 128), nn.SiLU(), nn.Linear(128, 128))
        self.first = nn.Conv2d(3, width, 3, padding=1)
        self.down1 = ConditionedBlock(width, width)
        self.shrink = nn.Conv2d(width, width, 3, 2, 1)
        self.down2 = ConditionedBlock(width, 2 * width)
        self.middle = ConditionedBlock(2 * width, 2 * width)
        self.up2 = ConditionedBlock(4 * width, width)
        self.up1 = ConditionedBlock(2 * width, width)
        self.last = nn.Sequential(nn.GroupNorm(8, width), nn.SiLU(), nn.Conv2d(width, 3, 3, padding=1))

    def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        """Return the predicted noise."""
        emb = self.time(timestep_embedding(t, self.width))
        h1 = self.down1(self.first(x), emb)
        h2 = self.down2(self.shrink(h1), emb)
        h = self.middle(h2, emb)
        h = self.up2(torch.cat([h, h2], dim=1), emb)
        h = F.interpolate(h, scale_factor=2, mode="nearest")
        return self.last(self.up1(torch.cat([h, h1], dim=1), emb))


def diffusion() -> Workload:
    """One denoising step: noise at a random timestep, predict it, AdamW."""
    timesteps = 1000

    def build():
        model = NoisePredictor()
        betas = torch.linspace(1e-4, 0.02, timesteps)
        model.register_buffer("alphas_cumprod", torch.cumprod(1 - betas, dim=0))
        return model, torch.optim.AdamW(model.parameters(), lr=2e-4)

    def batch():
        return torch.rand(8, 3, 48, 48) * 2 - 1

    def step(model, optimizer, x0):
        t = torch.randint(0, timesteps, (x0.shape[0],), device=x0.device).long()
        noise = torch.randn_like(x0)
        a = model.alphas_cumprod[t].view(-1, 1, 1, 1)
        x_t = a.sqrt() * x0 + (1 - a).sqrt() * noise
        loss = F.mse_loss(model(x_t, t), noise)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return Workload(build=build, batch=batch, step=step)


def diffusion_sampling() -> Workload:
    """Inference: a few denoising steps under no_grad with classifier-free guidance on a doubled batch."""

    def build():
        return NoisePredictor(width=48).eval()

    def batch():
        return torch.randn(4, 3, 48, 48)

    @torch.no_grad()
    def step(model, x):
        alphas = torch.linspace(0.01, 0.99, 5, device=x.device)
        for i, (a, later) in enumerate(itertools.pairwise(alphas)):
            t = torch.full((2 * x.size(0),), 1000 - 200 * i, device=x.device)
            free, guided = model(torch.cat([x, x]), t).chunk(2)
            noise = free + 3.0 * (guided - free)
            clean = (x - (1 - a).sqrt() * noise) / a.sqrt()
            x = later.sqrt() * clean.clamp(-1, 1) + (1 - later).sqrt() * noise
        return x.clamp(-1, 1)

    return Workload(build=build, batch=batch, step=step, mode="infer")


def normalizing_flow() -> Workload:
    """Affine coupling layers trained by maximum likelihood, Adamax."""
    dim = 64

    class Coupling(nn.Module):
        def __init__(self, flip):
            super().__init__()
            mask = torch.arange(dim) % 2
            self.register_buffer("mask", (1 - mask if flip else mask).float())
            self.scale = nn.Sequential(nn.Linear(dim, 256), nn.Tanh(), nn.Linear(256, dim), nn.Tanh())
            self.shift = nn.Sequential(nn.Linear(dim, 256), nn.ReLU(), nn.Linear(256, dim))

        def forward(self, x):
            kept = x * self.mask
            s = self.scale(kept) * (1 - self.mask)
            t = self.shift(kept) * (1 - self.mask)
            return kept + (1 - self.mask) * (x * s.exp() + t), s.sum(dim=1)

    def build():
        flow = nn.ModuleList([Coupling(i % 2 == 0) for i in range(8)])
        return flow, torch.optim.Adamax(flow.parameters(), lr=1e-3)

    def batch():
        return torch.randn(1024, dim)

    def step(flow, optimizer, x):
        log_det = torch.zeros(x.size(0), device=x.device)
        for layer in flow:
            x, ld = layer(x)
            log_det += ld
        prior = torch.distributions.Normal(0.0, 1.0)
        loss = -(prior.log_prob(x).sum(dim=1) + log_det).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return Workload(build=build, batch=batch, step=step)


def wavenet() -> Workload:
    """1-D dilated gated convolutions under weight norm on raw audio, Adam."""

    class Layer(nn.Module):
        def __init__(self, channels, dilation):
            super().__init__()
            self.padding = 2 * dilation
            self.gate = weight_norm(nn.Conv1d(channels, 2 * channels, 3, dilation=dilation))
            self.residual = weight_norm(nn.Conv1d(channels, channels, 1))
            self.skip = weight_norm(nn.Conv1d(channels, channels, 1))

        def forward(self, x):
            h = self.gate(F.pad(x, (self.padding, 0)))
            a, b = h.chunk(2, dim=1)
            h = torch.tanh(a) * torch.sigmoid(b)
            return x + self.residual(h), self.skip(h)

    class WaveNet(nn.Module):
        def __init__(self, channels=32, classes=128):
            super().__init__()
            self.embed = nn.Embedding(classes, channels)
            self.layers = nn.ModuleList([Layer(channels, 2**i) for i in range(8)])
            self.out = nn.Sequential(
                nn.ReLU(), nn.Conv1d(channels, 64, 1), nn.ReLU(), nn.Conv1d(64, classes, 1)
            )

        def forward(self, codes):
            x, total = self.embed(codes).transpose(1, 2), 0
            for layer in self.layers:
                x, skip = layer(x)
                total = total + skip
            return self.out(total)

    def build():
        model = WaveNet()
        return model, torch.optim.Adam(model.parameters(), lr=1e-3)

    def batch():
        wave = torch.rand(3, 6001) * 2 - 1
        mu_law = torch.sign(wave) * torch.log1p(127 * wave.abs()) / math.log(128)
        return ((mu_law + 1) / 2 * 127).long()

    def step(model, optimizer, codes):
        loss = F.cross_entropy(model(codes[:, :-1]), codes[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    return Workload(build=build, batch=batch, step=step)


def radiance_field() -> Workload:
    """A NeRF: positional encoding, a wide MLP per sample, volume rendering, Adam with decay by hand."""
    rays, samples = 256, 48

    def encode(x, levels):
        parts = [x]
        for i in range(levels):
            parts += [torch.sin(2.0**i * x), torch.cos(2.0**i * x)]
        return torch.cat(parts, dim=-1)

    class NeRF(nn.Module):
        def __init__(self, width=128):
            super().__init__()
            self.first = nn.ModuleList([nn.Linear(63, width)] + [nn.Linear(width, width) for _ in range(3)])
            self.second = nn.ModuleList([nn.Linear(width + 63, width), nn.Linear(width, width)])
            self.sigma, self.feature = nn.Linear(width, 1), nn.Linear(width, width)
            self.color = nn.Sequential(nn.Linear(width + 27, width // 2), nn.ReLU(), nn.Linear(width // 2, 3))

        def forward(self, points, directions):
            p = h = encode(points, 10)
            for layer in self.first:
                h = F.relu(layer(h))
            h = torch.cat([p, h], dim=-1)
            for layer in self.second:
                h = F.relu(layer(h))
            d = encode(directions, 4).unsqueeze(1).expand(-1, points.size(1), -1)
            return torch.sigmoid(self.color(torch.cat([self.feature(h), d], -1))), self.sigma(h).squeeze(-1)

    def build():
        model = NeRF()
        return model, torch.optim.Adam(model.parameters(), lr=5e-4)

    def batch():
        return torch.randn(rays, 3), F.normalize(torch.randn(rays, 3), dim=-1), torch.rand(rays, 3)

    def step(model, optimizer, batch):
        origins, directions, wanted = batch
        z = torch.linspace(2.0, 6.0, samples, device=origins.device).expand(rays, samples)
        z = z + torch.rand_like(z) * (4.0 / samples)
        points = origins[:, None] + directions[:, None] * z[..., None]
        rgb, sigma = model(points, directions)
        deltas = torch.cat([z[:, 1:] - z[:, :-1], torch.full_like(z[:, :1], 1e10)], dim=-1)
        alpha = 1 - torch.exp(-F.relu(sigma) * deltas)
        clear = torch.cumprod(torch.cat([torch.ones_like(alpha[:, :1]), 1 - alpha + 1e-10], -1), -1)[:, :-1]
        loss = F.mse_loss(((alpha * clear)[..., None] * rgb).sum(dim=1), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        for group in optimizer.param_groups:
            group["lr"] *= 0.999

    return Workload(build=build, batch=batch, step=step)


STEPS = (
    dcgan,
    wasserstein_gan,
    spectral_norm_gan,
    cycle_gan,
    vae,
    vq_vae,
    diffusion,
    diffusion_sampling,
    normalizing_flow,
    wavenet,
    radiance_field,
)
