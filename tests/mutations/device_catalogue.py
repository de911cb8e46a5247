"""Mistakes that are easily made where environments and policy live on a device."""

from tests.mutations.mutation import RL, RL_TESTS, Mutation

ON_A_DEVICE = (
    Mutation(
        "the next episode's value at an end",
        f"{RL}/rollout/estimates.py",
        "torch.where(done, final_values, evaluation.values[1:])",
        "evaluation.values[1:]",
        f"{RL_TESTS}/rollout/test_device_collector.py::test_the_same_noise_gives_what_arrays_give",
        "P1c",
    ),
    Mutation(
        "the host looks whether an episode ended",
        f"{RL}/rollout/device_collector.py",
        "if self._memory is not None:\n            self._memory = torch.where",
        "if done.any() and self._memory is not None:\n            self._memory = torch.where",
        f"{RL_TESTS}/rollout/test_device_collector.py::test_nothing_is_asked_of_the_device_but_once_an_iteration",
    ),
    Mutation(
        "what is new in a rollout is counted twice",
        f"{RL}/rollout/device_collector.py",
        "part.moments.begin()",
        "pass",
        f"{RL_TESTS}/rollout/test_device_collector.py::test_the_same_noise_gives_what_arrays_give",
    ),
    Mutation(
        "on a device: memory outlives the episode",
        f"{RL}/rollout/device_collector.py",
        "self._memory = torch.where(done[:, None], 0.0, self._memory)",
        "pass",
        f"{RL_TESTS}/rollout/test_device_collector.py::test_the_same_noise_gives_what_arrays_give[settings2-choices]",
        "P3b",
    ),
    Mutation(
        "on a device: V(final_obs) has the state before the step",
        f"{RL}/rollout/estimates.py",
        "else evaluation.states[:-1].flatten(0, 1)",
        "else torch.cat([buffer.memory[None], evaluation.states[:-2]]).flatten(0, 1)",
        f"{RL_TESTS}/rollout/test_device_collector.py::test_the_same_noise_gives_what_arrays_give[settings2-choices]",
        "P3a",
    ),
    Mutation(
        "on a device: reward scaling remembers the last episode",
        f"{RL}/rollout/device_collector.py",
        "self._returns = torch.where(done, 0.0, returns)",
        "self._returns = returns",
        f"{RL_TESTS}/rollout/test_device_collector.py::test_the_same_noise_gives_what_arrays_give[settings0-choices]",
        "P4c",
    ),
    Mutation(
        "on a device: final observations are not normalized",
        f"{RL}/rollout/device_collector.py",
        'self._normalized(infos["final_obs"]) if',
        'infos["final_obs"] if',
        f"{RL_TESTS}/rollout/test_device_collector.py::test_the_same_noise_gives_what_arrays_give[settings0-choices]",
        "P5d",
    ),
    Mutation(
        "on a device: the clipped action is kept",
        f"{RL}/rollout/device_collector.py",
        "            actions=actions,",
        "            actions=self._actions.fit(actions),",
        f"{RL_TESTS}/rollout/test_device_collector.py::test_the_same_noise_gives_what_arrays_give[settings0-numbers]",
        "P12a",
    ),
    Mutation(
        "on a device: numbers reach the environment unclipped",
        f"{RL}/rollout/device_collector.py",
        "return actions.clamp(low, high).reshape",
        "return actions.reshape",
        f"{RL_TESTS}/rollout/test_device_collector.py::test_the_same_noise_gives_what_arrays_give[settings0-numbers]",
        "P12b",
    ),
    Mutation(
        "on a device: scaled rewards in float64",
        f"{RL}/rollout/device_collector.py",
        "self._reward_scaler(rewards, done),",
        "self._reward_scaler(rewards, done).double(),",
        f"{RL_TESTS}/rollout/test_device_collector.py::test_no_tensor_is_float64",
        "P16",
    ),
)
