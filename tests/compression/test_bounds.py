"""Bounds: published numbers, the corrected inverse, and risks that are known."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

from rppdyn.compression import (
    catoni_bound,
    catoni_inverse,
    empirical_risk,
    hoeffding_bound,
    relative_error,
    setting_bits,
    universal_kl,
    zero_one_loss,
)

KILOBYTE = 8192  # bits


def test_published_bound_of_mnist():
    """.38 KB, an empirical risk of .04 and 60,000 data: 12 % (Finzi 2023, Table 5.2 and A.18 have 11.6)."""
    assert catoni_bound(0.04, universal_kl(0.38 * KILOBYTE), 60_000).value == pytest.approx(0.116, abs=0.004)


def test_bound_is_above_the_empirical_risk_and_grows_with_risk_and_bits_and_falls_with_data():
    assert catoni_inverse(1.0, 0.1) == pytest.approx(0.151, abs=5e-4)
    printed = (1 - math.exp(0.1)) / (1 - math.exp(1.0))
    assert printed == pytest.approx(0.061, abs=5e-4) and printed < 0.1  # as Theorem A.3 has it
    value = lambda risk, bits, n: catoni_bound(risk, universal_kl(bits), n).value  # noqa: E731
    for risk, bits, n in itertools.product([0.0, 0.04, 0.9, 1.0], [0, 300, 10_000], [1, 100, 60_000]):
        assert risk <= value(risk, bits, n) <= 1, (risk, bits, n)
    assert value(0.1, 300, 10_000) < value(0.2, 300, 10_000) < value(0.2, 600, 10_000) < value(0.2, 600, 5_000)


def test_bound_is_about_the_inverse_of_the_binary_divergence():
    """The best gamma of all gives kl^-1(risk | price / n); the grid loses little of it, and is never below."""
    risk, kl, n = 0.1, universal_kl(500), 10_000
    price = (kl + math.log(28 / 0.05)) / n
    binary = lambda q, p: q * math.log(q / p) + (1 - q) * math.log((1 - q) / (1 - p))  # noqa: E731
    low, high = risk, 1 - 1e-12
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if binary(risk, middle) < price else (low, middle)
    found = catoni_bound(risk, kl, n).value
    assert low <= found + 1e-9
    assert found <= 1.01 * low


def test_universal_prior():
    assert universal_kl(300) == pytest.approx(300 * math.log(2) + 2 * math.log(300))
    assert universal_kl(0) == universal_kl(2) == pytest.approx(4 * math.log(2))
    total = sum(2.0**l * math.exp(-universal_kl(l)) for l in range(2, 1000))  # of all messages
    assert 0.6 < total < 1
    assert [setting_bits(n) for n in (1, 2, 3, 4, 8, 9)] == [0, 1, 2, 2, 3, 4]


def test_bound_holds_for_models_chosen_among_many():
    """Random predictors, of which the best on the data is taken and coded by its number: the chosen one's risk is p."""
    rng, p, n, models, held, naive = np.random.default_rng(0), 0.5, 200, 4096, 0, 0
    for _ in range(200):
        risk = rng.binomial(n, p, size=models).min() / n
        held += catoni_bound(risk, universal_kl(12), n).value >= p
        naive += hoeffding_bound(risk, n) >= p
    assert held >= 0.95 * 200
    assert naive < 0.5 * 200  # as if it had not been chosen, the negative control


def test_losses_are_bounded():
    y = torch.tensor([[1.0, 0.0], [0.0, 0.0], [1.0, 1.0], [2.0, 0.0]])
    f = torch.tensor([[-1.0, 0.0], [0.0, 0.0], [math.nan, 1.0], [2.0, 0.0]])
    assert relative_error(f, y).tolist() == [1.0, 0.0, 1.0, 0.0]
    logits = torch.tensor([[0.0, 1.0], [2.0, 1.0], [math.nan, 1.0]])
    assert zero_one_loss(logits, torch.tensor([1, 1, 0])).tolist() == [0.0, 1.0, 1.0]
    large = torch.full((1, 2), 3e38)
    assert 0 <= float(relative_error(large, -large)[0]) <= 1


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: empirical_risk(torch.tensor([0.5, 3.5])), "a loss of 3.5"),
        (lambda: empirical_risk(torch.tensor([math.nan])), "a loss of nan"),
        (lambda: empirical_risk(torch.zeros(0)), "no data"),
        (lambda: catoni_bound(1.5, 1.0, 10), r"risk=1.5: must be in \[0, 1\]"),
        (lambda: catoni_bound(0.5, 1.0, 10, delta=1), "delta=1"),
        (lambda: hoeffding_bound(0.5, 0), "n=0"),
        (lambda: hoeffding_bound(math.nan, 10), "risk=nan"),
        (lambda: universal_kl(-1), "bits=-1"),
        (lambda: setting_bits(0), "choices=0"),
    ],
)
def test_refusals(call, words):
    with pytest.raises(ValueError, match=words):
        call()
