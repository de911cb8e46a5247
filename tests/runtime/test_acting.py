"""Where an episode begins is known to what remembers, and to nothing else."""

from ml_pipeline.runtime.acting import begin_episode


class Counting:
    def __init__(self):
        self.n_observations = 0

    def begin_episode(self):
        self.n_observations = 0

    def __call__(self, observation):
        self.n_observations += 1
        return self.n_observations


def test_what_remembers_forgets_the_episode_before():
    act = Counting()
    assert (act(0.0), act(0.0)) == (1, 2)
    begin_episode(act)
    assert act(0.0) == 1


def test_a_plain_function_acts_in_any_episode():
    begin_episode(abs)
    begin_episode(lambda observation: observation)
