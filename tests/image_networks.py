"""Small residual networks and vision transformers, in which a block may be broken."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Mask(nn.Module):
    """Entries times random numbers of their own: no translation commutes with it.

    Args:
        shape: of the numbers, as they are broadcast.
    """

    factor: Tensor

    def __init__(self, *shape: int):
        super().__init__()
        self.register_buffer("factor", 1.5 * torch.randn(shape, generator=torch.Generator().manual_seed(0)))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor


class Residual(nn.Module):
    """Two convolutions beside the identity."""

    def __init__(self, channels: int, act: type[nn.Module], broken: bool):
        super().__init__()
        conv = dict(kernel_size=3, padding=1, padding_mode="circular")
        self.conv1, self.act = nn.Conv2d(channels, channels, **conv), act()
        self.conv2 = nn.Conv2d(channels, channels, **conv)
        self.broken = Mask(16, 16) if broken else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.act(x + self.broken(self.conv2(self.act(self.conv1(x)))))


class ResidualNetwork(nn.Module):
    """Convolutions on a torus, residual blocks, batch normalisation, a mean over places and a linear map."""

    def __init__(self, blocks: int = 2, channels: int = 4, act: type[nn.Module] = nn.SiLU, broken: int | None = None):
        super().__init__()
        self.stem = nn.Conv2d(1, channels, 3, padding=1, padding_mode="circular")
        self.norm = nn.BatchNorm2d(channels)
        self.blocks = nn.Sequential(*(Residual(channels, act, i == broken) for i in range(blocks)))
        self.pool, self.head = nn.AdaptiveAvgPool2d(1), nn.Linear(channels, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.pool(self.blocks(self.norm(self.stem(x)))).flatten(1))


class Attention(nn.Module):
    """Self-attention, written out."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads, self.qkv, self.proj = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, count, width = x.shape
        q, k, v = self.qkv(x).reshape(batch, count, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        scores = (q @ k.transpose(-2, -1)) * q.shape[-1] ** -0.5
        return self.proj((scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, count, width))


class TransformerBlock(nn.Module):
    """Attention, of torch or written out, and a perceptron for each token."""

    def __init__(self, width: int, heads: int, written_out: bool, broken: bool):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.written_out = written_out
        self.attention = (
            Attention(width, heads) if written_out else nn.MultiheadAttention(width, heads, batch_first=True)
        )
        self.fc1, self.fc2 = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.broken = Mask(65, width) if broken else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x)
        x = x + (self.attention(y) if self.written_out else self.attention(y, y, y)[0])
        return x + self.broken(self.fc2(F.gelu(self.fc1(self.norm2(x)))))


class VisionTransformer(nn.Module):
    """Patches, a class token in front, learned positions, and the class token at the end."""

    def __init__(self, side: int = 16, patch: int = 2, width: int = 8, blocks: int = 2, *, written_out: bool = False,
                 broken: int | None = None):  # fmt: skip
        super().__init__()
        self.embed = nn.Conv2d(1, width, patch, patch)
        self.token = nn.Parameter(torch.randn(1, 1, width))
        self.positions = nn.Parameter(0.1 * torch.randn(1, (side // patch) ** 2 + 1, width))
        self.blocks = nn.Sequential(*(TransformerBlock(width, 2, written_out, i == broken) for i in range(blocks)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.positions
        return self.head(self.norm(self.blocks(x))[:, 0])


def seeded(make, *args, dtype=torch.float64, **options) -> nn.Module:
    """A network with the weights of seed 0, for evaluation."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return make(*args, **options).to(dtype).eval()
