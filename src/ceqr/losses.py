"""Every loss term of CEQR-DQN, and the two uncertainties: pure functions of arrays, nothing else.

Shapes: B batch, N quantiles, and an axis of two percentiles, the 5th and the 95th, in front of N. A plain
regression target is the case N = 1. Targets are differentiated like any other input: to hold them fixed (or
to hold gamma fixed, as in `nig._replace(gamma=jax.lax.stop_gradient(nig.gamma))`) is the caller's part.
Indicator functions carry no gradient. Half precision goes in and comes out, but inside it is float32.

Equations are those of Stutts et al., "Echoes of Socratic Doubt" (UAI 2024), with their names.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.nn import relu
from jax.typing import ArrayLike, DTypeLike

VARIANTS = ("paper", "released", "none")  # of both calibrations

FLOOR = 1e-6  # the least nu, alpha - 1 and beta, so that no uncertainty is ever infinite

_HALF = {jnp.dtype(jnp.float16), jnp.dtype(jnp.bfloat16)}
_F = TypeVar("_F", bound=Callable[..., Any])


class NIG(NamedTuple):
    """Normal-Inverse-Gamma parameters, four arrays of one shape (here mostly [B, 2, N]).

    mu ~ Normal(gamma, sigma^2 / nu), sigma^2 ~ InverseGamma(alpha, beta); nu, beta > 0 and alpha > 1.

    Examples:
        >>> import jax.numpy as jnp
        >>> from ceqr.losses import NIG
        >>> ones = jnp.ones((32, 2, 50))  # a batch of 32, two percentiles, 50 quantiles
        >>> nig = NIG(gamma=0 * ones, nu=ones, alpha=2 * ones, beta=ones)
        >>> nig.alpha.shape
        (32, 2, 50)
    """

    gamma: Array
    nu: Array
    alpha: Array
    beta: Array


# ---------------------------------------------------------------------------------------------------------
# At the door: all of this happens while JAX traces, and costs nothing when the program runs.


def _float32_inside(fn: _F) -> _F:
    """Computes half-precision calls in float32: squares and reciprocals of returns overflow float16 early."""

    @functools.wraps(fn)
    def wrapped(*args, **kwargs):
        dtypes = {x.dtype for x in jax.tree.leaves((args, kwargs)) if _is_array(x)}
        args, kwargs = jax.tree.map(lambda x: _widened(x) if _is_array(x) else x, (args, kwargs))
        result = fn(*args, **kwargs)
        if len(dtypes) == 1 and dtypes <= _HALF:
            return jax.tree.map(lambda x: x.astype(*dtypes), result)
        return result

    return cast(_F, wrapped)


def _is_array(x: Any) -> bool:
    return isinstance(x, jax.Array | np.ndarray)


def _widened(x: Any) -> Array:
    return jnp.asarray(x, jnp.float32 if x.dtype in _HALF else None)


def _check(ok: bool, must: str, **arrays: Array) -> None:
    if not ok:
        got = ", ".join(f"{name} {list(x.shape)}" for name, x in arrays.items())
        raise ValueError(f"{must}; got {got}")


def _check_nig(nig: NIG) -> None:
    same = len({x.shape for x in nig}) == 1
    _check(same, "the four NIG parameters must share one shape", **nig._asdict())


def _check_percentiles(nig: NIG) -> None:
    _check_nig(nig)
    two = nig.gamma.ndim >= 2 and nig.gamma.shape[-2] == 2
    _check(two, "NIG parameters must be [..., 2, N], the percentiles before the quantiles", gamma=nig.gamma)


def _check_variant(variant: str) -> None:
    if variant not in VARIANTS:
        raise ValueError(f"unknown calibration variant {variant!r}; known are {', '.join(map(repr, VARIANTS))}")


# ---------------------------------------------------------------------------------------------------------
# The evidential distribution.


def _softplus(x: Array) -> Array:
    # jax.nn.softplus guards against infinite inputs, at half as much again in time; ours are finite.
    return jnp.maximum(x, 0) + jnp.log1p(jnp.exp(-jnp.abs(x)))


def nig_from_raw(raw_gamma: Array, raw_nu: Array, raw_alpha: Array, raw_beta: Array) -> NIG:
    """NIG parameters of the head's raw outputs, all of one shape: gamma as is, nu and beta = softplus, alpha
    = softplus + 1, each with a floor.

    The floor is added rather than clipped, so that the gradient never quite dies. The paper writes that
    softplus makes "alpha + 1" positive; it means alpha - 1, as its Algorithm 1 requires alpha > 1.

    Examples:
        >>> import jax.numpy as jnp
        >>> from ceqr.losses import nig_from_raw
        >>> raw = jnp.full((1, 2, 3), -100.0)  # whatever a network says, the parameters are possible ones
        >>> nig = nig_from_raw(raw, raw, raw, raw)
        >>> bool((nig.nu > 0).all() and (nig.alpha > 1).all() and (nig.beta > 0).all())
        True
    """
    raws = {"raw_gamma": raw_gamma, "raw_nu": raw_nu, "raw_alpha": raw_alpha, "raw_beta": raw_beta}
    _check(len({jnp.shape(x) for x in raws.values()}) == 1, "raw outputs must share one shape", **raws)
    # Next to 1, half precision cannot hold 1e-6: there the floor of alpha - 1 is one unit in the last place.
    alpha_floor = max(FLOOR, float(jnp.finfo(raw_alpha.dtype).eps))
    return NIG(
        gamma=raw_gamma,
        nu=_softplus(raw_nu) + FLOOR,
        alpha=1 + (_softplus(raw_alpha) + alpha_floor),
        beta=_softplus(raw_beta) + FLOOR,
    )


def _gamma_ratio(alpha: Array) -> tuple[Array, Array]:
    """(m, c) such that log(Gamma(alpha) / Gamma(alpha + 1/2)) = -log(m) / 2 - c, for alpha > 1.

    With w = z - 1/4 and the Euler numbers E_2k,
        log(Gamma(z + 1/2) / Gamma(z)) ~ log(w) / 2 - sum_k E_2k / (k 4^(2k+1)) w^-2k,
    taken at z = alpha + shifts and brought down to alpha by Gamma(z + 1) = z Gamma(z). The difference of two
    lgamma takes several times as long, with digamma in its gradient, and is far less accurate in float32,
    where the two nearly cancel. The truncation error is below 4e-8 in float32 and 1e-13 in float64.
    """
    shifts, terms = (3, 3) if alpha.dtype == jnp.float32 else (8, 5)
    coefficients = (1 / 64, -5 / 2048, 61 / 49152, -1385 / 1048576, 50521 / 20971520)[:terms]
    above, below = alpha, alpha + 0.5
    for j in range(1, shifts):
        above, below = above * (alpha + j), below * (alpha + (j + 0.5))
    w = alpha + (shifts - 0.25)
    u = 1 / (w * w)
    series = jnp.zeros_like(alpha)
    for c in reversed(coefficients):
        series = (series + c) * u
    ratio = above / below
    return w * ratio * ratio, series


def _against_percentiles(y: Array, nig: NIG) -> Array:
    """y with the rank of nig. The rank alone decides, so that no axis is ever matched by its size."""
    shape = nig.gamma.shape
    aligned = jnp.expand_dims(y, -2) if 1 <= y.ndim == len(shape) - 1 else y
    fits = aligned.ndim == len(shape) and all(
        size in (1, full) for size, full in zip(aligned.shape, shape, strict=True)
    )
    _check(fits, "y must have nig's shape, with or without its percentile axis", y=y, gamma=nig.gamma)
    return aligned


@_float32_inside
def nig_nll(y: Array, nig: NIG) -> Array:
    """Negative log likelihood of y under St(y; gamma, beta (1 + nu) / (nu alpha), 2 alpha), elementwise.

        L_NLL = 1/2 log(pi / nu) - alpha log(Om) + (alpha + 1/2) log(nu (y - gamma)^2 + Om)
                + log(Gamma(alpha) / Gamma(alpha + 1/2)),    Om = 2 beta (1 + nu)

    nig: [B, 2, N]. y: [B, N], the same for both percentiles, or [B, 2, N], where an axis may have size 1.
    With y of nig's rank, nig may have any shape. Returns nig's shape.

    Examples:
        The likelihood is a Student t distribution, as SciPy knows it:

        >>> import jax.numpy as jnp
        >>> from scipy import stats
        >>> from ceqr.losses import NIG, nig_nll
        >>> gamma, nu, alpha, beta = 1.0, 2.0, 3.0, 0.5
        >>> nig = NIG(*(jnp.array([x]) for x in (gamma, nu, alpha, beta)))
        >>> scale = (beta * (1 + nu) / (nu * alpha)) ** 0.5
        >>> expected = -stats.t.logpdf(1.7, 2 * alpha, gamma, scale)
        >>> bool(abs(nig_nll(jnp.array([1.7]), nig)[0] - expected) < 1e-5)
        True
    """
    _check_nig(nig)
    gamma, nu, alpha, beta = nig
    error = _against_percentiles(y, nig) - gamma
    # With s = Om / nu the sum is 1/2 log(pi s) + (alpha + 1/2) log(1 + error^2 / s) + log(Gamma ratio): fewer
    # logarithms, no difference of large terms, and it shows that nu matters only through s.
    s = 2 * beta * (1 + 1 / nu)
    ratio, correction = _gamma_ratio(alpha)
    return 0.5 * jnp.log(math.pi * s / ratio) + (alpha + 0.5) * jnp.log1p(error * error / s) - correction


@_float32_inside
def evidential(target: Array, nig: NIG, reg: float = 0.5, *, levels: tuple[float, float] = (0.05, 0.95)) -> Array:
    """Evidential regression on both percentiles, L_evi = L_NLL + lambda_reg L_reg, with

        L_reg = Phi [1{y >= gamma} q (y - gamma) + 1{y < gamma} (1 - q) (gamma - y)],
        Phi = 2 nu + alpha + 1 / beta.

    target: [B, N]. nig: [B, 2, N]. reg: lambda_reg. levels: the q of the two percentiles. Returns a scalar,
    the mean over B and N, summed over the percentiles.

    Examples:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> from ceqr.losses import NIG, evidential
        >>> ones = jnp.ones((4, 2, 3))
        >>> nig = NIG(gamma=0 * ones, nu=ones, alpha=2 * ones, beta=ones)
        >>> target = jnp.ones((4, 3))
        >>> evidential(target, nig).shape
        ()
        >>> gradient = jax.grad(lambda gamma: evidential(target, nig._replace(gamma=gamma)))(nig.gamma)
        >>> bool((gradient < 0).all())  # gamma is drawn up, to the targets
        True
    """
    _check_percentiles(nig)
    shape = nig.gamma.shape
    fits = len(shape) == 3 and target.shape == (shape[0], shape[2])
    _check(fits, "target must be [B, N] and nig [B, 2, N]", target=target, gamma=nig.gamma)
    error = target[:, None, :] - nig.gamma
    q = jnp.asarray(levels, error.dtype)[None, :, None]
    tilted = jnp.where(error < 0, q - 1, q) * error
    evidence = 2 * nig.nu + nig.alpha + 1 / nig.beta
    loss = nig_nll(target, nig) + reg * tilted * evidence
    return jnp.sum(jnp.mean(loss, axis=(0, 2)))


@_float32_inside
def uncertainty(nig: NIG) -> tuple[Array, Array]:
    """(aleatoric, epistemic) of Algorithm 1, with sigma = sqrt(beta / (nu (alpha - 1))):

        psi_al = E_N |gamma_95 - gamma_5|,    psi_ep = E_N [1/2 (2 sigma_5 + 2 sigma_95)].

    nig: [..., 2, N]. Returns two arrays [...].

    Examples:
        >>> import jax.numpy as jnp
        >>> from ceqr.losses import NIG, uncertainty
        >>> gamma = jnp.array([[-1.0], [2.0]])  # the 5th and the 95th percentile: 3 apart
        >>> ones = jnp.ones((2, 1))
        >>> aleatoric, epistemic = uncertainty(NIG(gamma, nu=ones, alpha=2 * ones, beta=ones))
        >>> float(aleatoric), float(epistemic)
        (3.0, 2.0)
        >>> _, surer = uncertainty(NIG(gamma, nu=100 * ones, alpha=2 * ones, beta=ones))  # a hundred times the evidence
        >>> round(float(surer), 3)
        0.2
    """
    _check_percentiles(nig)
    gamma, nu, alpha, beta = nig
    aleatoric = jnp.mean(jnp.abs(gamma[..., 1, :] - gamma[..., 0, :]), axis=-1)
    sigma = jnp.sqrt(beta / (nu * (alpha - 1)))
    epistemic = jnp.mean(jnp.sum(sigma, axis=-2), axis=-1)
    return aleatoric, epistemic


# ---------------------------------------------------------------------------------------------------------
# The quantiles of the return.


def quantile_levels(n: int, dtype: DTypeLike = jnp.float32) -> Array:
    """Midpoint levels tau_i = (i - 1/2) / n, i = 1..n, as in QR-DQN. (The paper prints 1/N, the spacing.)

    Examples:
        >>> from ceqr.losses import quantile_levels
        >>> quantile_levels(4).tolist()
        [0.125, 0.375, 0.625, 0.875]
    """
    return jnp.asarray(_midpoints(n), dtype)


def _midpoints(n: int) -> np.ndarray:
    return (np.arange(n) + 0.5) / n


@_float32_inside
def quantile_huber(theta: Array, target: Array, kappa: float = 1.0) -> Array:
    """Quantile Huber loss, L_qr = sum_i E_j rho_i(target_j - theta_i), averaged over the batch, with

        rho_i(e) = |tau_i - 1{e < 0}| H_kappa(e) / kappa,    H_kappa(e) = e^2 / 2 if |e| <= kappa
                                                             else kappa (|e| - kappa / 2).

    theta: [B, N]. target: [B, M], mostly M = N. kappa: a Python float; 0 means the plain pinball loss, the
    limit of the above. Returns a scalar.

    Examples:
        >>> import jax.numpy as jnp
        >>> from ceqr.losses import quantile_huber
        >>> theta = jnp.array([[1.0, 2.0]])  # the quantiles at levels 1/4 and 3/4
        >>> float(quantile_huber(theta, jnp.array([[4.0]]), kappa=0))  # 1/4 * 3 + 3/4 * 2
        2.25
        >>> float(quantile_huber(theta, theta[:, :1], kappa=0))  # 3/4's is too high by 1, and that is mostly right
        0.25
    """
    fits = theta.ndim == 2 and target.ndim == 2 and theta.shape[0] == target.shape[0]
    _check(fits, "theta must be [B, N] and target [B, M]", theta=theta, target=target)
    if kappa < 0:
        raise ValueError(f"kappa must not be negative; got {kappa}")
    return _quantile_huber(theta, target, kappa)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _quantile_huber(theta: Array, target: Array, kappa: float) -> Array:
    return _quantile_huber_forward(theta, target, kappa)[0]


def _quantile_huber_forward(theta: Array, target: Array, kappa: float) -> tuple[Array, tuple[Array, Array]]:
    """The loss, and its gradients with respect to theta and target, which are there as soon as the loss is.

    The derivative of rho_i is weight * c, c being the error clipped to [-kappa, kappa] (by the envelope theorem: H(e)
    is the maximum over such c of c e - c^2 / 2). Sums over the pairs are products with ones: XLA's reductions of the
    largest array in training take twice as long.
    """
    tau = quantile_levels(theta.shape[1], theta.dtype)[None, :, None]
    error = target[:, None, :] - theta[:, :, None]  # [B, N, M]: theta's gradient is then a sum over the last axis
    weight = jnp.where(error < 0, 1 - tau, tau)
    if kappa == 0:
        slope = weight * jnp.sign(error)
        rho = weight * jnp.abs(error)
    else:
        c = jnp.clip(error, -kappa, kappa)
        slope = weight * c / kappa
        rho = slope * (error - 0.5 * c)
    over_i, over_j = jnp.ones(theta.shape[1], theta.dtype), jnp.ones(target.shape[1], theta.dtype)
    loss = jnp.sum(rho @ over_j) / target.size  # the sum over i, the means over b and j
    target_grad = jnp.einsum("bij,i->bj", slope, over_i) / target.size
    return loss, (-(slope @ over_j) / target.size, target_grad)


def _quantile_huber_backward(kappa: float, grads: tuple[Array, Array], upstream: Array) -> tuple[Array, Array]:
    return upstream * grads[0], upstream * grads[1]


_quantile_huber.defvjp(_quantile_huber_forward, _quantile_huber_backward)


def quantile_coverage_error(theta: Array, target: Array) -> Array:
    """How far the quantiles are from covering what they should: the mean over i of |p_i - tau_i|.

    theta, target: [B, N]; p_i is the share of the batch with target_i <= theta_i. A measure, not a loss: it has no
    gradient. Returns a scalar.

    Examples:
        >>> import jax.numpy as jnp
        >>> from ceqr.losses import quantile_coverage_error
        >>> target = jnp.arange(10.0)[:, None] * jnp.ones((1, 2))
        >>> theta = jnp.full((10, 1), 1.0) * jnp.array([[2.4, 6.6]])  # 30 % and 70 % of the targets lie below
        >>> round(float(quantile_coverage_error(theta, target)), 3)  # of 25 % and 75 %
        0.05
    """
    _check(
        theta.ndim == 2 and theta.shape == target.shape, "theta and target must be [B, N]", theta=theta, target=target
    )
    below = jnp.mean(target <= theta, axis=0, dtype=theta.dtype)
    return jnp.mean(jnp.abs(below - quantile_levels(theta.shape[1], theta.dtype)))


# ---------------------------------------------------------------------------------------------------------
# Calibration.


def _miscovered(covered: Array, goal: ArrayLike) -> tuple[Array, Array]:
    """Masks (under, over), [1, N]: where the share of the batch in `covered` [B, N] is below, above the goal.

    Counts are compared, not shares: 9 of 10 is then exactly on the goal 0.9, neither under nor over, in any
    dtype.
    """
    count = jnp.sum(covered, axis=0, keepdims=True, dtype=jnp.float32)
    enough = jnp.asarray(np.broadcast_to(np.asarray(goal) * covered.shape[0], count.shape), jnp.float32)
    return count < enough, count > enough


@_float32_inside
def calibration(theta: Array, target: Array, variant: str = "paper", sharpness: float = 0.5) -> Array:
    """Calibration of the return's quantiles, L_cal = (1 - lambda_cal) COV + lambda_cal SHARP, where

        COV   = mean of 1{p_i < tau_i} (y_i - q_i) 1{y_i > q_i} + 1{p_i > tau_i} (q_i - y_i) 1{y_i < q_i},
        SHARP = mean of 1{tau_i <= 1/2} (q'_i - q_i) + 1{tau_i > 1/2} (q_i - q'_i),

    with q = theta, y = target, p_i the share of the batch with y_i <= q_i, and q'_i the prediction at level
    1 - tau_i.

    theta, target: [B, N]. sharpness: lambda_cal. Returns a scalar. Variants:
    - "paper": the equation as it is meant. It prints q' as "1 - q-hat", which has no meaning on values.
      Widths count only where positive, so that crossed quantiles are not rewarded.
    - "released": what the authors' code computes. Coverage is over the quantiles of one sample, not over the
      batch; the over-covered side enters negatively; q' is 1 - q on values.
    - "none": zero.

    Examples:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> from ceqr.losses import calibration
        >>> target = jnp.arange(10.0)[:, None] * jnp.ones((1, 2))
        >>> theta = jnp.ones((10, 1)) * jnp.array([[0.4, 8.6]])  # levels 25 % and 75 %, which cover 10 % and 90 %
        >>> pull = jax.grad(calibration)(theta, target).mean(0)
        >>> bool(pull[0] < 0 < pull[1])  # so the lower one rises, and the upper one falls
        True
        >>> float(calibration(theta, target, variant="none"))
        0.0
    """
    _check_variant(variant)
    fits = theta.ndim == 2 and theta.shape == target.shape
    _check(fits, "theta and target must both be [B, N]", theta=theta, target=target)
    if variant == "none":
        return jnp.zeros((), theta.dtype)
    terms = _calibration_paper if variant == "paper" else _calibration_released
    cov, sharp = terms(theta, target)
    return (1 - sharpness) * cov + sharpness * sharp


def _calibration_paper(theta: Array, target: Array) -> tuple[Array, Array]:
    tau = _midpoints(theta.shape[1])
    under, over = _miscovered(target <= theta, tau)
    cov = jnp.where(under, relu(target - theta), 0) + jnp.where(over, relu(theta - target), 0)
    width = jnp.flip(theta, axis=1) - theta
    sharp = relu(jnp.where(tau[None, :] <= 0.5, width, -width))
    return jnp.mean(cov), jnp.mean(sharp)


def _calibration_released(theta: Array, target: Array) -> tuple[Array, Array]:
    n = theta.shape[1]
    level = (np.arange(1, n + 1) / (n + 1))[None, :]
    central = jnp.asarray(np.abs(2 * level - 1), theta.dtype)  # the share between levels tau and 1 - tau
    lower_half = level <= 0.5
    level = jnp.asarray(level, theta.dtype)

    error = target - theta
    below = target <= theta
    coverage = jnp.mean(below, axis=1, keepdims=True, dtype=theta.dtype)  # [B, 1]
    short = jnp.mean(jnp.where(below, 0, error), axis=1, keepdims=True)
    # Never positive: the sign is lost against Chung et al. (2021), and what is too high is driven higher.
    excess = jnp.mean(jnp.where(below, error, 0), axis=1, keepdims=True)
    cov = jnp.where(coverage < level, short, excess) * jnp.abs(coverage - level)

    opposite = 1 - theta
    low, high = jnp.minimum(theta, opposite), jnp.maximum(theta, opposite)
    inside = jnp.mean((low <= target) & (target <= high), axis=1, keepdims=True, dtype=theta.dtype)
    width = relu(jnp.where(lower_half, opposite - theta, theta - opposite))
    sharp = jnp.where(inside > central, width, 0)
    return jnp.mean(cov), jnp.mean(sharp)


@_float32_inside
def interval_calibration(
    lower: Array,
    upper: Array,
    target: Array,
    variant: str = "paper",
    sharpness: float = 0.5,
    coverage: float = 0.9,
    share: Array | None = None,
) -> Array:
    """Calibration of the evidential interval [lower, upper], gamma's 5th and 95th percentile: L_cal with the
    goal p = coverage in place of the level, plus the interval score that centres the target,

        L_interval = mean of (upper - lower)
                             + 2 / (1 - p) [(lower - y) 1{y < lower} + (y - upper) 1{y > upper}].

    L_cal = (1 - lambda_cal) COV + lambda_cal SHARP looks at both bounds. Where the share of the batch inside
    the interval falls short of p, COV is the distance to the targets left outside, which widens it. Where the
    share exceeds p, COV is the distance of each bound from the targets on its inner side and SHARP is the
    width: both tighten it. Exactly on the goal, only the interval score remains.

    lower, upper, target: [B, N]. sharpness: lambda_cal. share: [N], the share of targets inside the interval where it
    is known from more than this batch; a small batch alone often errs about which side of p it is on, and the pull
    inwards is the stronger one. Returns a scalar. Variants:
    - "paper": as above. The paper's factor 2 / q leaves q open; with 1 - p the score is proper for a central
      interval of coverage p.
    - "released": what the authors' code computes. The lower bound reuses the upper bound's COV, and the
      factor is 2 / 0.95 + 2 / 0.05.
    - "none": zero. The interval score goes too, as in the paper's ablation without calibration.

    Examples:
        >>> import jax.numpy as jnp
        >>> from ceqr.losses import interval_calibration
        >>> target = jnp.arange(100.0)[:, None]
        >>> def loss(lower, upper):
        ...     return float(interval_calibration(jnp.full((100, 1), lower), jnp.full((100, 1), upper), target))
        >>> right = loss(4.5, 94.5)  # contains 90 of the 100
        >>> right < loss(20.0, 80.0) and right < loss(-20.0, 120.0)
        True
    """
    _check_variant(variant)
    fits = target.ndim == 2 and lower.shape == upper.shape == target.shape
    _check(fits, "lower, upper and target must all be [B, N]", lower=lower, upper=upper, target=target)
    if not 0 < coverage < 1:
        raise ValueError(f"coverage must lie between 0 and 1; got {coverage}")
    if variant == "none":
        return jnp.zeros((), target.dtype)

    if share is None:
        under, over = _miscovered((lower <= target) & (target <= upper), coverage)
    else:
        _check(share.shape == target.shape[1:], "share must be [N] and target [B, N]", share=share, target=target)
        under, over = share[None] < coverage, share[None] > coverage
    width = upper - lower
    above, below = relu(target - upper), relu(lower - target)
    if variant == "paper":
        widen, tighten = above + below, relu(upper - target) + relu(target - lower)
        penalty = 2 / (1 - coverage)
    else:
        over = ~under  # their code has no "exactly on the goal"
        widen, tighten = above + relu(target - lower), relu(upper - target) + below
        level = (1 - coverage) / 2
        penalty = 2 / (1 - level) + 2 / level
    cov = jnp.where(under, widen, 0) + jnp.where(over, tighten, 0)
    sharp = jnp.where(over, width, 0)
    score = width + penalty * (above + below)
    return jnp.mean((1 - sharpness) * cov + sharpness * sharp + score)
