"""Walker2d in stable-baselines3, four ways to use its symmetry. The script trains each for some steps."""

from rppdyn.agents import RPPSAC, RelaxedPPO

ENV, STEPS = "Walker2d-v5", 120

networks = dict(policy_kwargs=dict(hidden=32), device="cpu")
plain = dict(policy_kwargs=dict(model="mlp", hidden=32), device="cpu")
sac = dict(learning_starts=100, buffer_size=10_000)
AGENTS = {
    "SAC, relaxed networks": RPPSAC("RPPPolicy", ENV, **networks, **sac),
    "PPO, relaxed networks": RelaxedPPO("RPPPolicy", ENV, n_steps=60, batch_size=30, **networks),
    "SAC, mirrored transitions": RPPSAC("RPPPolicy", ENV, augment=True, **plain, **sac),
    "SAC, a mirror loss": RPPSAC("RPPPolicy", ENV, mirror_loss=4.0, **plain, **sac),
}

if __name__ == "__main__":
    for name, agent in AGENTS.items():
        agent.learn(STEPS)
        print(name, agent.spec.generator_names, agent.num_timesteps)
