"""A service with brief runs, and what it says."""

import pytest

from ml_pipeline.service.agent_training_service import AgentTrainingService
from ml_pipeline.service.resources import ServiceLimits
from tests.service.brief_run import brief_processes


@pytest.fixture(scope="module", autouse=True)
def _brief_reports(undrawn_reports: None) -> None:
    """Nothing here looks at the pictures of a run's report."""


@pytest.fixture
def said():
    """Every sentence of the services of a test."""
    return []


@pytest.fixture
def serve(tmp_path, said):
    """Makes services on tmp_path / "root"; closes them, and stops what they ran, at the end."""
    opened = []

    def make(**limits):
        service = AgentTrainingService(
            tmp_path / "root",
            limits=ServiceLimits(**{"cores": 8, "stop_grace_s": 30.0, **limits}),
            say=said.append,
            processes=brief_processes,
        )
        opened.append(service)
        return service

    yield make
    for service in opened:
        service.close(stop_runs=True)
