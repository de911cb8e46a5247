import sys
import threading
from types import SimpleNamespace

import pytest

from ml_pipeline.monitoring import machine
from ml_pipeline.monitoring.machine import CpuTimes, GpuUse, Machine


def test_the_machine_tells_its_cores_and_memory():
    use = Machine().look()
    assert 0.0 <= use.cpu_percent <= 100.0
    assert use.n_cores >= 1
    assert 0.0 < use.memory_gib < use.total_gib


def test_cores_are_busy_since_the_look_before_whichever_thread_looks():
    seen = iter([CpuTimes(10.0, 100.0), CpuTimes(11.0, 102.0), CpuTimes(11.0, 102.01), CpuTimes(11.0, 104.0)])
    machine = Machine(times=lambda: next(seen))
    found = []
    for _ in range(3):
        thread = threading.Thread(target=lambda: found.append(machine.look().cpu_percent))
        thread.start()
        thread.join()
    assert found == [50.0, 50.0, 0.0]


def fake_nvml(**functions):
    memory = SimpleNamespace(used=3 * 2**30, total=80 * 2**30)
    usual = {
        "nvmlInit": lambda: None,
        "nvmlDeviceGetCount": lambda: 2,
        "nvmlDeviceGetHandleByIndex": lambda i: i,
        "nvmlDeviceGetName": lambda handle: b"H100" if handle else "H200",
        "nvmlDeviceGetUtilizationRates": lambda handle: SimpleNamespace(gpu=40 + handle),
        "nvmlDeviceGetMemoryInfo": lambda handle: memory,
    }
    return SimpleNamespace(**{**usual, **functions})


def test_each_gpu_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml())
    assert Machine().look().gpus == (GpuUse("H200", 40.0, 3.0, 80.0), GpuUse("H100", 41.0, 3.0, 80.0))


def test_what_a_slice_of_a_gpu_does_not_tell_is_not_known(monkeypatch):
    def refuse(*_):
        raise RuntimeError("NVMLError_NotSupported")

    nvml = fake_nvml(nvmlDeviceGetUtilizationRates=refuse, nvmlDeviceGetMemoryInfo=refuse)
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    assert Machine().look().gpus[0] == GpuUse("H200", None, None, None)


@pytest.mark.parametrize("what", ["nvmlInit", "nvmlDeviceGetCount"])
def test_without_a_gpu_there_is_none(monkeypatch, what):
    def refuse(*_):
        raise RuntimeError("NVMLError_LibraryNotFound")

    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml(**{what: refuse}))
    assert machine._gpus() == []
