"""Limits of `ppo_throughput.py`: the time of one part of a training, a lower bound for every trainer."""

import time
from collections.abc import Callable
from typing import Any

from throughput_envs import BUSY_S
from throughput_jobs import Job


def steps_on_all_cores(job: Job) -> Callable[[int], None]:
    """Takes the time of the environment steps, divided among all cores without loss."""
    from ml_pipeline.runtime.cores import usable_cores

    return lambda iterations: time.sleep(iterations * job.num_envs * job.n_steps * BUSY_S / usable_cores())


def matrix_products(job: Job) -> Callable[[int], None]:
    """The products of acting, values and learning, for 17 observations, two networks of 64 x 64 and 3 + 1 outputs.

    In torch with all cores, into memory that is there: the first layer, the second, and the way back through both.
    """
    import torch

    def product(m: int, k: int, n: int) -> Callable[[], Any]:
        a, b, c = torch.randn(m, k), torch.randn(k, n), torch.empty(m, n)
        return lambda: torch.mm(a, b, out=c)

    def layers(b: int) -> list[Callable[[], Any]]:
        return [product(b, 17, 64), product(b, 64, 64), product(b, 64, 3)]

    n_samples, b = job.num_envs * job.n_steps, job.minibatch_size
    act, forward = layers(job.num_envs), layers(b)
    back = [product(17, b, 64), product(64, b, 64), product(64, b, 3), product(b, 64, 64), product(b, 3, 64)]

    def train(iterations: int) -> None:
        for _ in range(iterations):
            for run in act * job.n_steps:
                run()
            for _ in range(2 * n_samples // b):  # of both networks: once for all samples, then in every epoch
                for run in forward + (forward + back) * job.n_epochs:
                    run()

    return train


def convolutions(job: Job, dtype: str) -> Callable[[int], None]:
    """The three convolutions of NatureCNN in acting and learning, without all else: channels last, on all cores.

    Forward of every frame, and forward and backward of every minibatch, without the gradient by the frames.
    """
    import torch

    def case(n: int) -> list[tuple[Any, Any, Any, int]]:
        sizes = [(4, 84, 32, 8, 4), (32, 20, 64, 4, 2), (64, 9, 64, 3, 1)]  # channels, side, filters, kernel, stride
        layers = []
        for channels, side, filters, kernel, stride in sizes:
            images, weights, gradients = (
                torch.randn(shape).to(getattr(torch, dtype), memory_format=torch.channels_last)
                for shape in (
                    (n, channels, side, side),
                    (filters, channels, kernel, kernel),
                    (n, filters, (side - kernel) // stride + 1, (side - kernel) // stride + 1),
                )
            )
            layers.append((images, weights, gradients, stride))
        return layers

    acting, learning = case(job.num_envs), case(job.minibatch_size)
    n_minibatches = job.n_epochs * job.num_envs * job.n_steps // job.minibatch_size

    def forward(layers: list[tuple[Any, Any, Any, int]]) -> None:
        for images, weights, _, stride in layers:
            torch.conv2d(images, weights, None, stride)

    def backward(layers: list[tuple[Any, Any, Any, int]]) -> None:
        for i, (images, weights, gradients, stride) in enumerate(layers):
            of_both = [i > 0, True, False]  # by images and by weights
            torch.ops.aten.convolution_backward(
                gradients, images, weights, None, [stride] * 2, [0, 0], [1, 1], False, [0, 0], 1, of_both
            )

    @torch.inference_mode()
    def train(iterations: int) -> None:
        for _ in range(iterations):
            for _ in range(job.n_steps):
                forward(acting)
            for _ in range(n_minibatches):
                forward(learning)
                backward(learning)

    return train
