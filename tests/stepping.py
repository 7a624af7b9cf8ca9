"""Single updates of agents on given batches."""

from __future__ import annotations

import dataclasses

import torch


def settings_of(agent, tau):
    return dataclasses.replace(agent.settings(), tau=tau)


def stepped(update, batches, settings):
    """Metrics by name, (S,) each, after an update on a batch of each agent."""
    update.refresh()
    like = update.state["actor"]
    numbers = torch.tensor([s.numbers for s in settings], dtype=like.dtype).T.unsqueeze(-1)
    with torch.no_grad():
        metrics = update.update_(update.state, update.stacked(batches), numbers, settings[0])
    return dict(zip(metrics.names, metrics.values, strict=True))
