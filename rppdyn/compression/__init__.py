"""Networks in random subspaces, their codes, and PAC-Bayes bounds of what is coded shortly."""

from rppdyn.compression._coding import (
    Agreement,
    Bound,
    agreement,
    categorical_bits,
    catoni_bound,
    catoni_inverse,
    decode,
    decode_symbols,
    empirical_risk,
    encode,
    encode_symbols,
    entropy,
    gaussian_bits,
    hoeffding_bound,
    relative_error,
    setting_bits,
    universal_kl,
    zero_one_loss,
)
from rppdyn.compression._subspace import (
    PROJECTORS,
    FiLMProjector,
    KroneckerProjector,
    Projector,
    Subspace,
    SumProjector,
    compress,
    make_projector,
    modulating,
)

__all__ = [
    "Bound", "catoni_bound", "catoni_inverse", "empirical_risk", "hoeffding_bound", "relative_error",
    "setting_bits", "universal_kl", "zero_one_loss", "Agreement", "agreement", "categorical_bits", "gaussian_bits",
    "decode", "decode_symbols", "encode", "encode_symbols", "entropy", "PROJECTORS",
    "FiLMProjector", "KroneckerProjector", "Projector", "SumProjector", "make_projector", "modulating", "Subspace",
    "compress",
]  # fmt: skip
