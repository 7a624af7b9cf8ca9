"""A humanoid and its mirror image, twice: the film at the head of the README. `python mirror_film.py mirror.gif` makes it.

Grey is Gymnasium's Humanoid-v5, afloat, under slow controls. Orange starts as its mirror image, gets the mirrored controls, and
is drawn mirrored back, a little thinner: it shows where the two part. On the left both are the stock model, whose knees differ.
On the right `symmetrise` has repaired what deviates, and grey hides orange.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

if __name__ == "__main__":
    os.environ.setdefault("MUJOCO_GL", "egl")  # draws without a display; before MuJoCo is imported

import gymnasium as gym
import mujoco
import numpy as np
from PIL import Image, ImageDraw

from rppdyn.envs import symmetry_spec
from rppdyn.envs.derivation import derive
from rppdyn.envs.derivation._symmetrise import symmetrise

SIZE, RATE, SECONDS = (330, 330), 20, 5.0
GREY, GHOST, FLOOR = (0.72, 0.76, 0.82, 1.0), (1.0, 0.45, 0.05, 0.8), (0.32, 0.37, 0.43, 1.0)


def motion(model: mujoco.MjModel, seconds: float) -> Iterator[tuple[mujoco.MjData, mujoco.MjData]]:
    """A model under swinging controls, and its mirror image under the mirrored ones, mirrored back; a pair for each frame."""
    spec = symmetry_spec(model, symmetry="left-right")
    g = spec.group.discrete_generators[0]
    rho = spec.state_rep("qpos").rho(g).numpy()
    one, other, ghost = (mujoco.MjData(model) for _ in range(3))
    other.qpos[:] = spec.qpos.transform(rho, one.qpos)
    phases = np.random.default_rng(3).uniform(0, 2 * np.pi, model.nu)
    for _ in range(round(RATE * seconds)):
        ghost.qpos[:] = spec.qpos.transform(rho, other.qpos)
        for data in (one, ghost):
            mujoco.mj_kinematics(model, data)
        yield one, ghost
        for _ in range(round(1 / (RATE * model.opt.timestep))):
            u = 0.06 * np.sin(2 * np.pi * 0.6 * one.time + phases)
            one.ctrl[:], other.ctrl[:] = u, spec.transform_action(g, u)
            for data in (one, other):
                mujoco.mj_step(model, data)


def pictures(model: mujoco.MjModel, title: str, seconds: float) -> Iterator[np.ndarray]:
    """The frames of one panel."""
    model.opt.gravity[:] = 0
    model.geom_matid[:] = -1
    model.geom_rgba[:] = [FLOOR if body == 0 else GREY for body in model.geom_bodyid]
    camera, option = mujoco.MjvCamera(), mujoco.MjvOption()
    camera.lookat[:], camera.distance, camera.azimuth, camera.elevation = (0, 0, 1.2), 2.9, 150, -8
    with mujoco.Renderer(model, SIZE[1], SIZE[0]) as renderer:
        for one, ghost in motion(model, seconds):
            mujoco.mj_camlight(model, one)
            renderer.update_scene(one, camera)
            scene = renderer.scene
            scene.flags[mujoco.mjtRndFlag.mjRND_REFLECTION] = scene.flags[mujoco.mjtRndFlag.mjRND_SHADOW] = 0
            count = scene.ngeom
            mujoco.mjv_addGeoms(model, ghost, option, mujoco.MjvPerturb(), mujoco.mjtCatBit.mjCAT_DYNAMIC, scene)
            for geom in scene.geoms[count : scene.ngeom]:
                geom.rgba[:], geom.size[:] = GHOST, 0.97 * geom.size
            picture = Image.fromarray(renderer.render())
            ImageDraw.Draw(picture).text((10, 8), title, fill=(255, 255, 255), font_size=15)
            yield np.asarray(picture)


def main(path: str, seconds: float = SECONDS) -> None:
    """Write the film."""
    with gym.make("Humanoid-v5") as env:
        stock = env.unwrapped.model
        repaired = symmetrise(stock, derive(stock)["left-right"])
        panels = (
            pictures(stock, "Humanoid-v5 as it is", seconds),
            pictures(repaired, "with both deviations repaired", seconds),
        )
        frames = [
            Image.fromarray(np.hstack(pair)).quantize(48, dither=Image.Dither.NONE)
            for pair in zip(*panels, strict=True)
        ]
    frames[0].save(path, save_all=True, append_images=frames[1:], duration=1000 // RATE, loop=0, optimize=True)


if __name__ == "__main__":
    main(*sys.argv[1:2])
