"""Symmetric models of dynamics: Hamiltonian and neural-ODE models, their rollouts, and what they conserve."""

from rppdyn.dynamics.integrate import METHODS, IntegrationError, Trajectories, integrate
from rppdyn.dynamics.models import DynamicsModel, HamiltonianModel, NeuralODEModel, SeparableHamiltonian
from rppdyn.dynamics.observables import noether_momenta, relative_drift, rollout_error
from rppdyn.dynamics.planning import CrossEntropyPlanner
from rppdyn.dynamics.transition import Rollout, Step, TransitionModel

__all__ = [
    "METHODS",
    "CrossEntropyPlanner",
    "DynamicsModel",
    "HamiltonianModel",
    "IntegrationError",
    "NeuralODEModel",
    "Rollout",
    "SeparableHamiltonian",
    "Step",
    "Trajectories",
    "TransitionModel",
    "integrate",
    "noether_momenta",
    "relative_drift",
    "rollout_error",
]
