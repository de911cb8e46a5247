"""Images to features, by the convolutions of the first deep networks for Atari. B samples, C channels."""

import math

import torch
from torch import Tensor, nn

from ml_pipeline.models.rl.networks.convolutions import Layer, convolve
from ml_pipeline.models.rl.networks.linear import linear

N_FEATURES = 512


class ImageEncoder(nn.Module):
    """Points 0 to 255, uint8 or float32 (B, C * height * width), to float32 (B, 512).

    Source: Mnih et al. 2015, Human-level control through deep reinforcement learning, extended data table 1.
    """

    def __init__(
        self,
        shape: tuple[int, int, int],
        *,
        channels_last: bool,
        generator: torch.Generator,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        """shape: channels, height, width; channels_last: whether the points of a sample come as height, width, C.

        dtype: of the products; weights and features are float32.
        """
        super().__init__()
        self._shape = shape
        self._channels_last = channels_last
        self._dtype = dtype
        channels, height, width = shape
        self.convolutions = nn.ModuleList([
            nn.Conv2d(channels, 32, kernel_size=8, stride=4),
            nn.Conv2d(32, 64, kernel_size=4, stride=2),
            nn.Conv2d(64, 64, kernel_size=3, stride=1),
        ])  # fmt: skip
        for kernel, stride in ((8, 4), (4, 2), (3, 1)):
            height, width = (height - kernel) // stride + 1, (width - kernel) // stride + 1
        self.last = nn.Linear(height * width * 64, N_FEATURES)  # its inputs in the order (height, width, channel)
        for layer in (*self.convolutions, self.last):
            assert isinstance(layer, nn.Conv2d | nn.Linear)
            assert layer.bias is not None
            nn.init.orthogonal_(layer.weight, math.sqrt(2.0), generator=generator)
            nn.init.zeros_(layer.bias)

    def forward(self, points: Tensor) -> Tensor:
        channels, height, width = self._shape
        if self._channels_last:
            images = points.view(-1, height, width, channels).permute(0, 3, 1, 2)  # to (B, C, height, width)
        else:
            images = points.view(-1, channels, height, width)
        layers = []
        for i, layer in enumerate(self.convolutions):
            assert isinstance(layer, nn.Conv2d)
            weight = layer.weight / 255.0 if i == 0 else layer.weight  # fewer than the points, whose scale it is
            layers.append(Layer(weight.to(self._dtype), self._cast(layer.bias), layer.stride[0]))
        # Of 64 frames of 84x84x4 on one Zen 4 core, ms forward and backward: the three convolutions 31 with channels
        # last and 44 with channels first; the last layer 10.5, and 11.9 as a convolution of 7x7.
        values = convolve(images, layers)
        rows = values.permute(0, 2, 3, 1).flatten(1)  # (B, height * width * 64), without a copy
        return linear(rows, self.last.weight.to(self._dtype), self._cast(self.last.bias)).relu_().float()

    def _cast(self, bias: Tensor | None) -> Tensor:
        assert bias is not None
        return bias.to(self._dtype)
