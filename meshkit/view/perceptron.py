"""The smallest case in real numbers: `meshkit demo`'s perceptron, cut in two replicas and two tensor peers.

Shapes as in demo.py: B samples (16), I inputs (32), H hidden (64), O outputs (16). Needs JAX, no device.
"""

import dataclasses

import numpy as np

DATA, TENSOR = 2, 2


@dataclasses.dataclass(frozen=True)
class Perceptron:
    """x [B, I], w1 [H, I], w2 [O, H] and what follows from them; every list is a matrix of rounded float64.

    hidden_BH: relu(x w1ᵀ). partial_BO: of each tensor peer, from its half of H. y_BO: their sum. error: the
    largest difference between y and the uncut product. loss_B: ½ Σ y² of each sample; loss: their mean, L.
    dy_BO, dhidden_BH: dL/dy, dL/dhidden. gradient_OH: dL/dw2 of each replica's mean over its samples. mean_OH: their
    mean. gradient_error: likewise.
    """

    x_BI: list[list[float]]
    w1_HI: list[list[float]]
    w2_OH: list[list[float]]
    hidden_BH: list[list[float]]
    partial_BO: list[list[list[float]]]
    y_BO: list[list[float]]
    error: float
    loss_B: list[float]
    loss: float
    dy_BO: list[list[float]]
    dhidden_BH: list[list[float]]
    gradient_OH: list[list[list[float]]]
    mean_OH: list[list[float]]
    gradient_error: float


def perceptron() -> Perceptron:
    """The part of the page in which numbers flow."""
    from meshkit import demo

    arrays = demo.cases(DATA, TENSOR)[0].arrays
    x_BI, w1_HI, w2_OH = (arrays[name][0] for name in ("x", "w1", "w2"))
    y_BO = demo.numpy_forward(x_BI, w1_HI, w2_OH)
    loss_B, dy_BO = 0.5 * np.sum(y_BO**2, axis=1), y_BO / len(y_BO)
    halves = zip(np.split(w1_HI, TENSOR), np.split(w2_OH, TENSOR, axis=1), strict=True)
    partial = [demo.numpy_forward(x_BI, w1, w2) for w1, w2 in halves]
    replicas = [demo.numpy_gradient(x, w1_HI, w2_OH)[1] for x in np.split(x_BI, DATA)]
    mean_OH = np.mean(replicas, axis=0)
    whole_OH = demo.numpy_gradient(x_BI, w1_HI, w2_OH)[1]
    return Perceptron(
        _rounded(x_BI),
        _rounded(w1_HI),
        _rounded(w2_OH),
        _rounded(np.maximum(x_BI @ w1_HI.T, 0)),
        [_rounded(part) for part in partial],
        _rounded(y_BO),
        float(np.abs(sum(partial) - y_BO).max()),
        loss_B.tolist(),
        float(loss_B.mean()),
        _rounded(dy_BO),
        _rounded(dy_BO @ w2_OH),
        [_rounded(gradient) for gradient in replicas],
        _rounded(mean_OH),
        float(np.abs(mean_OH - whole_OH).max()),
    )


def _rounded(matrix: np.ndarray) -> list[list[float]]:
    return np.round(matrix, 4).tolist()
