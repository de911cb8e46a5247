"""How a deployed policy acts: by its likeliest action, as in an evaluation, and never on a NaN.

A network that gives NaN still has a largest output, so that a discrete policy would go short on it; hence what leads to
the action is looked at, and not the action alone.
"""

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ml_pipeline.config.errors import UserError
from ml_pipeline.models.rl.policies.policy import Policy
from ml_pipeline.models.rl.preprocessing.spaces import only_row

if TYPE_CHECKING:
    from ml_pipeline.runs.sb3.policy import SB3Policy

Observation = NDArray[np.float32]


class ImpossibleAction(UserError):
    """The policy gave no action that can be carried out: NaN, a choice that there is not, or one beyond a limit."""


class DeployedActing:
    """Acts bar after bar, as `Policy.act` does, bit for bit; a recurrent policy remembers until `begin_episode`."""

    def __init__(self, policy: "Policy | SB3Policy") -> None:
        self.policy = policy
        self.begin_episode()

    def begin_episode(self) -> None:
        """Forget all observations so far."""
        self._memory = self.policy.new_memory(1) if isinstance(self.policy, Policy) else None

    def __call__(self, observation: Observation) -> Any:
        """The action for one observation. Raises ImpossibleAction, and remembers nothing of it, where it is NaN."""
        if not np.isfinite(observation).all():
            raise ImpossibleAction("The observation is not finite; check the bars and the account it was made of.")
        policy = self.policy
        action = self._of_own(policy, observation) if isinstance(policy, Policy) else self._of_sb3(policy, observation)
        if not np.isfinite(np.asarray(action, dtype=np.float64)).all():
            raise ImpossibleAction(f"The policy gave {action}, which is not finite.")
        return action

    def state(self) -> list[float] | None:
        """What the policy remembers, as plain numbers; None for one without memory."""
        return None if self._memory is None else [float(value) for value in self._memory.state[0]]

    def set_state(self, state: list[float] | None) -> None:
        """Continue where `state` was taken. Raises UserError if it is of another memory."""
        self.begin_episode()
        if (state is None) != (self._memory is None) or (
            state is not None and self._memory is not None and len(state) != self._memory.state.shape[1]
        ):
            raise UserError("The state is of a policy with another memory; begin with the model that it was taken of.")
        if state is not None and self._memory is not None:
            self._memory.state = np.array([state], dtype=np.float32)

    def _of_own(self, policy: Policy, observation: Observation) -> Any:
        remembered = None if self._memory is None else self._memory.state
        parameters = policy.parameters(policy.observations.process_one(observation), self._memory)
        if np.isnan(parameters).any():
            if self._memory is not None and remembered is not None:
                self._memory.state = remembered
            raise ImpossibleAction("The policy's network gave NaN; its weights or its statistics are broken.")
        return only_row(policy.fit_actions(policy.distribution.mode(parameters)))

    def _of_sb3(self, policy: "SB3Policy", observation: Observation) -> Any:
        if broken := [name for name, weight in policy.model.policy.state_dict().items() if not weight.isfinite().all()]:
            raise ImpossibleAction(f"The policy's weights are not finite ({broken[0]}).")
        return policy.act(observation)
