"""Write logs of a puck on a table, pushed at random: all episodes one after the other, as D4RL has them, and as demonstrations.

python puck_log.py          # puck.hdf5 and demonstrations.hdf5
"""

import h5py
import numpy as np

EPISODES, STEPS, STEP = 16, 60, 0.05


def episode(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Position and velocity, (STEPS, 4), and forces, (STEPS, 2), of a puck on a stiffening spring; its sensors are noisy."""
    q, v = rng.uniform(-1, 1, (2, 2))
    forces, states = np.repeat(rng.normal(size=(STEPS // 10, 2)), 10, axis=0), []
    for force in forces:
        states.append(np.concatenate([q, v]))
        for _ in range(20):
            v = v + STEP / 20 * (force - (1 + 4 * (q @ q)) * q - 0.2 * v)
            q = q + STEP / 20 * v
    return np.array(states) + 1e-3 * rng.normal(size=(STEPS, 4)), forces


def main() -> None:
    rng = np.random.default_rng(0)
    states, forces = map(np.stack, zip(*(episode(rng) for _ in range(EPISODES)), strict=True))
    with h5py.File("puck.hdf5", "w") as file:
        file["observations"], file["actions"] = states.reshape(-1, 4), forces.reshape(-1, 2)
        file["terminals"] = np.zeros(EPISODES * STEPS, bool)
        file["timeouts"] = np.arange(EPISODES * STEPS) % STEPS == STEPS - 1
        file["infos/qpos"], file["infos/qvel"] = states[..., :2].reshape(-1, 2), states[..., 2:].reshape(-1, 2)
    with h5py.File("demonstrations.hdf5", "w") as file:
        for i in range(EPISODES):
            demonstration = file.create_group(f"data/demo_{i}")
            demonstration["actions"] = forces[i]
            demonstration["obs/position"], demonstration["obs/velocity"] = states[i, :, :2], states[i, :, 2:]


if __name__ == "__main__":
    main()
