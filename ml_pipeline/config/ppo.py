"""PPO's hyperparameters: `PPOConfig`, built in Python or from the command line.

The sentence below each field is the help of its flag.
"""

import re
from collections.abc import Mapping
from dataclasses import MISSING, InitVar, dataclass, field, fields
from typing import Any, Literal, get_args

from ml_pipeline.config.checks import (
    check_choice,
    check_count,
    check_non_negative,
    check_positive,
    check_within,
    is_plain,
)
from ml_pipeline.config.errors import UserError
from ml_pipeline.config.policy_kwargs import policy_settings
from ml_pipeline.config.settings import SCHEDULED, Network, Scheduled, by_name, spelled_out

Schedule = Literal["constant", "linear", "cosine"]
LearningRateSchedule = Literal["constant", "linear", "cosine", "adaptive"]
NormalizedOver = Literal["minibatch", "batch"]
Activation = Literal["tanh", "relu", "elu", "gelu", "silu", "leaky_relu"]
MemoryKind = Literal["none", "gru", "lstm"]
NormalizeUpdate = Literal["step", "rollout"]


@dataclass(frozen=True, kw_only=True)
class PPOConfig:
    """Hyperparameters of PPO (Schulman et al. 2017, arXiv:1707.06347).

    learning_rate, clip_range and ent_coef may be functions of the share of training that is left, from 1 to 0, as in
    Stable-Baselines3. Checkpoints and config.yaml hold only the name of a function: pass it again when you resume.
    `network` may be a function too. If it can be imported from a module, the setting becomes its name, such as
    "my_networks:small", and nothing needs to be passed again.
    policy_kwargs: those of Stable-Baselines3's PPO, in place of the settings that mean the same, such as
    {"net_arch": [64, 64], "activation_fn": torch.nn.ReLU}; it has features_extractor_class and its kwargs,
    share_features_extractor, net_arch, activation_fn, ortho_init and log_std_init.

    Raises UserError, in one sentence, if a value is out of range.

    >>> PPOConfig(learning_rate=1e-3).n_epochs
    10
    >>> PPOConfig(clip_range="lin_0.2").clip_range_schedule
    'linear'
    >>> PPOConfig(learning_rate=lambda left: 4e-4 * left**2).learning_rate(0.5)
    0.0001
    """

    n_steps: int = 256
    """Steps per environment in one rollout, usually 64 to 2048. Longer rollouts include rewards that lie further ahead;
    shorter ones update the policy more often."""

    minibatch_size: int = 256
    """Transitions per minibatch, usually 64 to 4096, at most n_envs * n_steps. Larger minibatches give fewer and less
    noisy gradient steps, and are faster. The last minibatch of an epoch may be smaller."""

    n_epochs: int = 10
    """Passes over the rollout in each update, usually 3 to 20. More passes learn more from the same data, but may
    overfit it."""

    learning_rate: Scheduled = 3e-4
    """Adam's step size at the start of training, usually 1e-5 to 1e-3. With a larger rate, the policy learns faster and
    less stably. lin_3e-4 means 3e-4 with a linear schedule; clip_range and ent_coef accept this spelling too."""

    learning_rate_schedule: LearningRateSchedule = "constant"
    """How the learning rate changes during training: constant; linear or cosine, to zero at the end; or adaptive, so
    that the KL divergence stays near target_kl."""

    gamma: float = 0.99
    """Discount factor, usually 0.95 to 0.999. A larger factor gives later rewards more weight."""

    gae_lambda: float = 0.95
    """Lambda of generalized advantage estimation, usually 0.9 to 1. 0 uses the one-step error (low variance, high
    bias), 1 the whole discounted return (high variance, low bias)."""

    clip_range: Scheduled = 0.2
    """How far the probability ratio of new to old policy may move from 1 before its gradient is cut, usually 0.1 to
    0.3. With a larger range, the policy may change more per update."""

    clip_range_schedule: Schedule = "constant"
    """How the clip range changes during training: constant; or linear or cosine, to zero at the end."""

    clip_range_vf: float | None = None
    """How far the predicted value of a state may move in one update, in units of the (normalized) return; none: no
    value clipping."""

    ent_coef: Scheduled = 0.0
    """Weight of the entropy bonus in the loss, usually 0 to 0.02. With a larger weight, the policy explores more."""

    ent_coef_schedule: Schedule = "constant"
    """How the entropy weight changes during training: constant; or linear or cosine, to zero at the end."""

    vf_coef: float = 0.5
    """Weight of the value loss, usually 0.25 to 1. The value loss is the mean squared error, as in Stable-Baselines3;
    CleanRL halves it, so its 0.5 is 0.25 here."""

    max_grad_norm: float = 0.5
    """Largest norm of the gradient of all parameters, usually 0.3 to 1; a larger gradient is scaled down to it. A huge
    value disables clipping."""

    target_kl: float | None = None
    """Target of the approximate KL divergence between old and new policy, usually 0.01 to 0.03. An update ends early if
    the divergence exceeds 1.5 times the target; none: no limit."""

    normalize_advantages: bool = True
    """Normalize advantages to mean 0 and standard deviation 1."""

    normalize_advantages_over: NormalizedOver = "minibatch"
    """Normalize advantages within each minibatch, or over the whole batch of a rollout."""

    normalize_obs: bool = True
    """Normalize observations to mean 0 and variance 1 by running statistics. Evaluation does not update the
    statistics."""

    clip_obs: float = 10.0
    """Largest absolute value of a normalized observation, in standard deviations; values beyond it are clipped."""

    normalize_update: NormalizeUpdate = "step"
    """When the statistics of observations are updated: after each step, or after each rollout. With --n-processes above
    1, rollout is the default and step is refused."""

    normalize_rewards: bool = True
    """Divide rewards by the running standard deviation of the discounted return."""

    normalize_values: bool = False
    """Train the value network on returns normalized by their running mean and variance (Pop-Art)."""

    hidden_sizes: tuple[int, ...] = (64, 64)
    """Units of each hidden layer, usually 64 64 to 256 256, of the policy and, without value_hidden_sizes, of the value
    network. Larger networks can represent more and train more slowly."""

    value_hidden_sizes: tuple[int, ...] | None = None
    """Units of each hidden layer of the value network; none: the same as hidden_sizes."""

    activation: Activation = "tanh"
    """Activation function after each hidden layer, as defined in torch; gelu is the exact version, not the tanh
    approximation."""

    ortho_init: bool = True
    """Start with orthogonal weights and biases of 0, so that the first actions hardly depend on observations; off:
    torch's default weights and biases."""

    log_std_init: float = 0.0
    """Logarithm of the initial standard deviation of continuous actions, usually -3 to 0; 0 is a deviation of 1, -2 of
    0.14. With a larger value, the policy explores more at first."""

    use_sde: bool = False
    """Explore by noise that depends on the state (gSDE), for Box actions: a random matrix per environment turns the
    last hidden layer into noise, so that similar states get similar noise. It is not compiled."""

    sde_sample_freq: int = -1
    """With use_sde: steps until a new random matrix is drawn, usually 4 to 64; -1: only at the start of each rollout.
    With a larger number, exploration is smoother."""

    squash_actions: bool = False
    """Map continuous actions into their bounds by tanh; otherwise clip them to the bounds."""

    share_layers: bool = False
    """Share all layers except the last one between the policy and the value network."""

    share_encoder: bool = True
    """Share the convolutional layers for images, or your own network, between the policy and the value network;
    --share-network means the same."""

    network: Network = None
    """Your own network in place of ours for images, named module:function: it takes the observation space and returns a
    torch module from observations to vectors, which the memory, the layers of hidden_sizes and the heads follow; none:
    ours."""

    network_kwargs: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of your own network, as JSON, such as '{"width": 128}'."""

    memory: MemoryKind = "none"
    """Recurrent memory of earlier observations: none, gru or lstm. With a memory, minibatches consist of whole
    sequences."""

    memory_size: int = 64
    """Units of the recurrent memory, usually 32 to 256. A larger memory can store more and trains more slowly."""

    sequence_length: int | None = None
    """Steps through which gradients flow back in the recurrent memory; must divide n_steps; none: n_steps. Longer
    sequences can learn longer delays; shorter ones mix more environments and times in a minibatch."""

    bfloat16: bool = False
    """Compute convolutions of images in bfloat16: less precise, and in about half the time on processors that support
    it."""

    gradient_chunks: int | None = None
    """Number of chunks into which each minibatch is divided, so that threads and processes compute their gradients in
    parallel; none: up to 8 for large networks, otherwise 1."""

    policy_kwargs: InitVar[Mapping[str, Any] | None] = None

    def __post_init__(self, policy_kwargs: Mapping[str, Any] | None) -> None:
        given = {**vars(self), **self._translated(policy_kwargs or {})}
        if callable(given["network"]):
            given["network"] = by_name(given["network"])
        for name, value in spelled_out(given).items():
            object.__setattr__(self, name, value)
        for name in ("n_steps", "minibatch_size", "n_epochs", "memory_size"):
            check_count(name, getattr(self, name))
        for name in ("sequence_length", "gradient_chunks"):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name))
        for name in ("max_grad_norm", "clip_obs"):
            check_positive(name, getattr(self, name))
        self._check_scheduled()
        for name in ("clip_range_vf", "target_kl"):
            if getattr(self, name) is not None:
                check_positive(name, getattr(self, name), remedy="leave it out to switch it off")
        check_non_negative("vf_coef", self.vf_coef)
        for name in ("gamma", "gae_lambda"):
            check_within(name, getattr(self, name), 0, 1)
        check_choice("learning_rate_schedule", self.learning_rate_schedule, get_args(LearningRateSchedule))
        for name in ("clip_range_schedule", "ent_coef_schedule"):
            check_choice(name, getattr(self, name), get_args(Schedule))
        check_choice("normalize_advantages_over", self.normalize_advantages_over, get_args(NormalizedOver))
        check_choice("normalize_update", self.normalize_update, get_args(NormalizeUpdate))
        check_choice("activation", self.activation, get_args(Activation))
        check_choice("memory", self.memory, get_args(MemoryKind))
        self._check_network()
        self._check_exploration()
        self._check_together()

    def _check_exploration(self) -> None:
        check_within("log_std_init", self.log_std_init, -20, 20)
        if self.use_sde and self.squash_actions:
            raise UserError("use_sde explores without tanh, but squash_actions is on; switch one of them off.")
        if self.sde_sample_freq == -1:
            return
        check_count("sde_sample_freq", self.sde_sample_freq)
        if not self.use_sde:
            raise UserError(
                f"sde_sample_freq is {self.sde_sample_freq}, but use_sde is off; switch it on, or leave "
                "sde_sample_freq out."
            )

    def _translated(self, policy_kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The settings in `policy_kwargs`. Raises UserError if one of them is given by its own name too."""
        settings = policy_settings(policy_kwargs)
        usual = {each.name: each.default for each in fields(self) if each.default is not MISSING}
        for name, value in settings.items():
            if (ours := getattr(self, name)) not in (usual.get(name), {}):
                raise UserError(f"{name} is {ours}, but policy_kwargs has {value} for it; keep one of the two.")
        return {name: tuple(value) if isinstance(value, list) else value for name, value in settings.items()}

    def _check_scheduled(self) -> None:
        for name in SCHEDULED:
            value, schedule = getattr(self, name), getattr(self, f"{name}_schedule")
            if not callable(value):
                (check_non_negative if name == "ent_coef" else check_positive)(name, value)
            elif schedule != "constant":
                raise UserError(f"{name} is a function, but {name}_schedule is {schedule}; leave the schedule out.")

    def _check_network(self) -> None:
        for name in ("hidden_sizes", "value_hidden_sizes"):
            for size in getattr(self, name) or ():
                check_count(f"Each of {name}", size)
        function = self.network
        if function is None and self.network_kwargs:
            raise UserError(
                "network_kwargs are the arguments of network, which is none; set network, such as to my_networks:small."
            )
        is_name = isinstance(function, str) and re.fullmatch(r"[^:]+:[^:]+", function)
        if not (is_name or callable(function) or function is None):
            raise UserError(f"network must be a function or its name, such as my_networks:small, but got {function!r}.")
        if not isinstance(self.network_kwargs, dict) or not is_plain(self.network_kwargs):
            raise UserError(
                "network_kwargs must hold numbers, texts, lists and mappings, which checkpoints can hold, but got "
                f"{self.network_kwargs!r}; bind other values in a function of your own, such as "
                "PPOConfig(network=lambda space: my_network(space, torch.nn.ReLU))."
            )

    def _check_together(self) -> None:
        if self.learning_rate_schedule == "adaptive" and self.target_kl is None:
            raise UserError("learning_rate_schedule adaptive needs target_kl to adapt to, such as 0.01, but got none.")
        if self.normalize_advantages_over == "batch" and not self.normalize_advantages:
            raise UserError(
                "normalize_advantages_over is batch, but normalize_advantages is off; switch it on, or leave "
                "normalize_advantages_over out."
            )
        if not self.normalize_obs and self.clip_obs != PPOConfig.clip_obs:
            raise UserError(
                f"clip_obs is {self.clip_obs}, but normalize_obs is off, and only normalized observations are clipped; "
                "switch it on, or leave clip_obs out."
            )
        if self.ent_coef_schedule != "constant" and self.ent_coef == 0.0:
            raise UserError(
                f"ent_coef_schedule is {self.ent_coef_schedule}, but ent_coef is 0; set ent_coef, such as to 0.01."
            )
        if self.value_hidden_sizes is not None and self.share_layers:
            raise UserError(
                "share_layers gives both networks the layers of hidden_sizes; leave value_hidden_sizes out."
            )
        if self.share_layers and not self.share_encoder:
            raise UserError("share_layers shares the convolutions of images too; leave share_encoder on.")
        if self.memory == "none" and self.memory_size != PPOConfig.memory_size:
            raise UserError(
                f"memory_size is {self.memory_size}, but memory is none; set memory to gru or lstm, or leave it out."
            )

        if self.memory == "none" and self.network is None and self.sequence_length is not None:
            raise UserError(
                f"sequence_length is {self.sequence_length}, but memory is none; set memory to gru or lstm, or leave "
                "it out."
            )
        length = self.sequence_length or self.n_steps
        if self.n_steps % length:
            divisors = (divisor for divisor in range(1, self.n_steps + 1) if self.n_steps % divisor == 0)
            nearest = min(divisors, key=lambda divisor: abs(divisor - length))
            raise UserError(
                f"sequence_length must divide n_steps = {self.n_steps}, but got {length}; {nearest} is the nearest "
                "that does."
            )

    @property
    def steps_per_noise(self) -> int:
        """Steps of a rollout that use the same noise: one, or as many as use_sde keeps its matrices."""
        if not self.use_sde:
            return 1
        return self.n_steps if self.sde_sample_freq == -1 else self.sde_sample_freq

    def check_change(self, n_envs: int) -> None:
        """Raise UserError if training cannot continue with `n_envs` environments."""
        least = -(-self.minibatch_size // self.n_steps)
        if n_envs < least:
            raise UserError(
                f"{n_envs} environments are too few for a minibatch of {self.minibatch_size}: their rollout has "
                f"{n_envs} * {self.n_steps} = {n_envs * self.n_steps} steps; {least} is the nearest number that does."
            )

    def check_batch(self, n_envs: int) -> None:
        """Raise UserError if a minibatch is larger than a rollout of `n_envs` environments.

        >>> PPOConfig(n_steps=128, minibatch_size=2048).check_batch(n_envs=8)
        Traceback (most recent call last):
        ml_pipeline.config.errors.UserError: minibatch_size must be at most n_envs * n_steps = 8 * 128 = 1024, \
but got 2048; lower it to 1024, or raise n_steps to 256.
        """
        batch_size = n_envs * self.n_steps
        if self.minibatch_size > batch_size:
            enough_steps = -(-self.minibatch_size // n_envs)
            raise UserError(
                f"minibatch_size must be at most n_envs * n_steps = {n_envs} * {self.n_steps} = {batch_size}, "
                f"but got {self.minibatch_size}; lower it to {batch_size}, or raise n_steps to {enough_steps}."
            )
