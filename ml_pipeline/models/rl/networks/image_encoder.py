"""Images to features, by the convolutions of the first deep networks for Atari. B samples, C channels."""

import math

import torch
from torch import Tensor, nn

N_FEATURES = 512


class ImageEncoder(nn.Module):
    """Points 0 to 255, float32 (B, C * height * width), to float32 (B, 512).

    Source: Mnih et al. 2015, Human-level control through deep reinforcement learning, extended data table 1.
    """

    def __init__(self, shape: tuple[int, int, int], *, channels_last: bool, generator: torch.Generator) -> None:
        """shape: channels, height, width; channels_last: whether the points of a sample come as height, width, C."""
        super().__init__()
        self._shape = shape
        self._channels_last = channels_last
        convolutions = nn.Sequential(
            nn.Conv2d(shape[0], 32, kernel_size=8, stride=4),
            nn.ReLU(),
            nn.Conv2d(32, 64, kernel_size=4, stride=2),
            nn.ReLU(),
            nn.Conv2d(64, 64, kernel_size=3, stride=1),
            nn.ReLU(),
            nn.Flatten(),
        )
        with torch.no_grad():
            n_outputs = convolutions(torch.zeros(1, *shape)).shape[1]
        self.layers = nn.Sequential(*convolutions, nn.Linear(n_outputs, N_FEATURES), nn.ReLU())
        for layer in self.layers:
            if isinstance(layer, nn.Conv2d | nn.Linear):
                nn.init.orthogonal_(layer.weight, math.sqrt(2.0), generator=generator)
                assert layer.bias is not None
                nn.init.zeros_(layer.bias)

    def forward(self, points: Tensor) -> Tensor:
        channels, height, width = self._shape
        if self._channels_last:
            images = points.view(-1, height, width, channels).permute(0, 3, 1, 2)  # to (B, C, height, width)
        else:
            images = points.view(-1, channels, height, width)
        return self.layers(images / 255.0)
