"""What a run uses of the machine, as psutil and NVML tell it."""

import subprocess
import sys
import threading
import time
import types
from types import SimpleNamespace

import pytest

from ml_pipeline.monitoring import resources
from ml_pipeline.monitoring.resources import CpuTimes, Gpu, GpuUse, Machine, Resources, Usage, _means

BUSY = "print(1, flush=True)\nwhile True: pass"
IDLE = "import sys; held = bytearray(50_000_000); print(1, flush=True); input()"


class Clock:
    """Time that passes when it is told to."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def child(code):
    return subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def started(process):
    assert process.stdout.readline()
    return process


def cpu_s(process):
    import psutil

    times = psutil.Process(process.pid).cpu_times()
    return times.user + times.system


def burnt(process, seconds):
    """Wait until the process has used so much more CPU."""
    first = cpu_s(process)
    while cpu_s(process) < first + seconds:
        time.sleep(0.01)


def test_a_busy_child_raises_the_cpu_and_leaves_it_when_it_ends():
    clock = Clock()
    with child(BUSY) as process:
        try:
            sampled = Resources(threaded=False, interval_s=0.0, clock=clock)  # finds the child
            burnt(started(process), 0.5)
            clock.now += 1.0
            busy = sampled()["system/cpu_percent"]
        finally:
            process.kill()
    process.wait()
    clock.now += 1000.0
    idle = sampled()["system/cpu_percent"]
    sampled.close()
    assert busy >= 50.0  # half a second of CPU in what the clock calls a second
    assert idle < busy


def test_memory_is_that_of_this_process_and_its_children():
    alone = Resources(threaded=False)
    before = alone()["system/rss_mb"]
    with child(IDLE) as process:
        started(process)
        both = Resources(threaded=False)()["system/rss_mb"]
        process.stdin.close()
    assert both - before >= 45


def test_a_worker_from_elsewhere_counts_though_it_is_no_child(monkeypatch):
    monkeypatch.setattr(resources.psutil.Process, "children", lambda self, recursive: [])
    with child(IDLE) as process:
        started(process)
        pids = []
        sampled = Resources(worker_pids=lambda: pids, threaded=False, interval_s=0.0)
        without = sampled()["system/rss_mb"]
        pids.append(process.pid)
        assert sampled()["system/rss_mb"] - without >= 45
        process.stdin.close()
        process.wait()
        assert sampled()["system/rss_mb"] - without < 45  # a process that is gone is left out


def test_a_call_between_two_samples_repeats_the_latest():
    clock = Clock()
    sampled = Resources(threaded=False, interval_s=1.0, clock=clock)
    clock.now += 0.1
    first = sampled()
    assert set(first) == {"system/cpu_percent", "system/rss_mb"}
    taken = sampled._latest
    clock.now += 0.5
    assert sampled() == first
    assert sampled._latest is taken
    clock.now += 0.6
    sampled()
    assert sampled._latest is not taken


def test_several_samples_of_an_iteration_become_their_mean():
    usages = [Usage(50.0, 100.0, None, 10.0), Usage(150.0, 300.0, 80.0, 20.0), Usage(None, 200.0)]
    assert _means(usages) == {
        "system/cpu_percent": 100.0,
        "system/rss_mb": 200.0,
        "system/gpu_percent": 80.0,
        "system/gpu_memory_mb": 15.0,
    }


def test_the_thread_samples_between_calls_and_ends_with_close():
    sampled = Resources(interval_s=0.001)
    assert threading.active_count() == 1 or "resources" not in [each.name for each in threading.enumerate()]
    assert sampled()
    thread = sampled._thread
    with sampled._lock:
        seen = sampled._latest
    while sampled._latest is seen:
        time.sleep(0.001)
    assert sampled()["system/rss_mb"] > 0
    sampled.close()
    sampled.close()
    assert not thread.is_alive()


def test_without_a_gpu_nothing_is_told_of_one():
    assert Gpu.of("cpu") is None
    assert Gpu.of("mps") is None


def test_a_missing_library_of_nvidia_is_no_error(monkeypatch):
    def missing():
        raise OSError("NVMLError_LibraryNotFound")

    monkeypatch.setitem(sys.modules, "pynvml", types.SimpleNamespace(nvmlInit=missing))
    assert Gpu.of("cuda:0") is None


def test_the_gpu_of_the_device_is_asked(monkeypatch):
    import torch

    def refused(handle):
        raise RuntimeError("NVMLError_NotSupported")

    nvml = types.SimpleNamespace(
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByUUID=lambda uuid: uuid,
        nvmlDeviceGetUtilizationRates=lambda handle: types.SimpleNamespace(gpu=37),
        nvmlDeviceGetMemoryInfo=lambda handle: types.SimpleNamespace(used=3 * 2**30),
    )
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda device: types.SimpleNamespace(uuid=f"abc-{device.index}")
    )
    gpu = Gpu.of("cuda:1")
    assert gpu._handle == "GPU-abc-1"
    figures = Resources(gpu=gpu, threaded=False)()
    assert (figures["system/gpu_percent"], figures["system/gpu_memory_mb"]) == (37.0, 3072.0)
    monkeypatch.setattr(nvml, "nvmlDeviceGetUtilizationRates", refused)
    assert gpu.sample() == (None, 3072.0)


@pytest.mark.parametrize("threaded", [True, False])
def test_a_resource_that_never_was_called_can_be_closed(threaded):
    Resources(threaded=threaded).close()


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
    assert resources._gpus() == []
