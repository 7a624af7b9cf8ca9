"""Symmetric models of dynamics: Hamiltonian and neural-ODE models, their rollouts, and what they conserve."""

from rppdyn.dynamics._fitted import Drive, FittedDynamics, Scaling
from rppdyn.dynamics._integrate import METHODS, IntegrationError, Trajectories, integrate
from rppdyn.dynamics._learned_symmetry import LearnedFrame, SymmetricHamiltonian, learn_symmetry
from rppdyn.dynamics._models import (
    DrivenModel,
    DynamicsModel,
    HamiltonianModel,
    MechanicalModel,
    NeuralODEModel,
    SeparableHamiltonian,
    noether_momenta,
    relative_drift,
    rollout_error,
)
from rppdyn.dynamics._transition import CrossEntropyPlanner, Rollout, Step, TransitionModel

__all__ = [
    "METHODS", "CrossEntropyPlanner", "Drive", "DrivenModel", "DynamicsModel", "FittedDynamics", "HamiltonianModel",
    "IntegrationError", "LearnedFrame", "MechanicalModel", "NeuralODEModel", "Rollout", "Scaling", "SeparableHamiltonian",
    "Step", "SymmetricHamiltonian", "Trajectories", "TransitionModel", "integrate", "learn_symmetry", "noether_momenta",
    "relative_drift", "rollout_error",
]  # fmt: skip
