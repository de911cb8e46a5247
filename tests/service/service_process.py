"""A service in a process of its own, on the root that it is given, with runs of `brief_run`; until it is killed."""

import sys
import threading
from functools import partial
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from ml_pipeline.service.agent_training_service import AgentTrainingService
from ml_pipeline.service.channel import ServiceChannel
from ml_pipeline.service.commands.serve import answer
from ml_pipeline.service.resources import ServiceLimits
from tests.service.brief_run import brief_processes

if __name__ == "__main__":
    root = Path(sys.argv[1])
    service = AgentTrainingService(root, limits=ServiceLimits(max_runs=3, cores=8), processes=brief_processes)
    channel = ServiceChannel(root, partial(answer, service))
    print("ready", flush=True)
    threading.Event().wait()
