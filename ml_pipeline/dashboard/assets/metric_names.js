// Titles of metrics, with the unit of their axis. An unknown metric, such as one of a sink, keeps its id.
const known = {
  "rollout/mean_return_100": ["Mean return, last 100 episodes", "reward"],
  "rollout/episode_return": ["Mean return of a rollout's episodes", "reward"],
  "rollout/episode_length": ["Mean length of episodes", "steps"],
  "rollout/n_completed_episodes": ["Episodes ended in a rollout", "episodes"],
  "rollout/n_worker_restarts": ["Workers replaced", "workers"],
  "eval/score": ["Evaluation score", "score"],
  "train/policy_loss": ["Policy loss", "loss"],
  "train/value_loss": ["Value loss", "loss"],
  "train/entropy": ["Entropy of the actions", "nats"],
  "train/approx_kl": ["KL divergence of an update", "nats"],
  "train/clip_fraction": ["Clipped samples", "share"],
  "train/gradient_norm": ["Gradient norm before clipping", "norm"],
  "train/explained_variance": ["Explained variance of returns", "share"],
  "train/learning_rate": ["Learning rate", "step size"],
  "train/clip_range": ["Clip range", "ratio"],
  "train/n_minibatches": ["Gradient steps of an update", "steps"],
  "time/iteration": ["Iterations", "iterations"],
  "time/global_step": ["Environment steps", "steps"],
  "time/n_envs": ["Environments", "environments"],
  "time/steps_per_second": ["Speed", "steps per second"],
  "time/acting_s": ["Time of acting", "seconds"],
  "time/stepping_s": ["Time of stepping", "seconds"],
  "time/waiting_s": ["Time of waiting for workers", "seconds"],
  "time/exchanging_s": ["Time of exchanging between ranks", "seconds"],
  "time/learning_s": ["Time of learning", "seconds"],
  "time/evaluating_s": ["Time of evaluating", "seconds"],
  "workers/count": ["Worker processes", "workers"],
  "system/cpu_percent": ["Processor, 100 % for each busy core", "%"],
  "system/rss_mb": ["Memory", "MiB"],
  "system/gpu_percent": ["GPU in use", "%"],
  "system/gpu_memory_mb": ["GPU memory in use", "MiB"],
};

// units: of the scores of the drawn runs.
export function metricName(metric, units = []) {
  const rank = /^system\/rank(\d+)\//.exec(metric);
  const [title, unit] = known[rank ? metric.replace(rank[0], "system/") : metric] || [metric, ""];
  const scores = [...new Set(units)].filter(Boolean);
  return { title: rank ? `${title}, rank ${rank[1]}` : title, unit: metric === "eval/score" && scores.length === 1 ? scores[0] : unit };
}
