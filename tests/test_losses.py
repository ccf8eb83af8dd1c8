"""The loss terms against golden values, finite differences, SciPy, and arithmetic done by hand."""

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from jax.flatten_util import ravel_pytree
from numpy.testing import assert_allclose
from scipy import stats
from scipy.special import gammaln

from ceqr import losses
from ceqr.losses import NIG, quantile_levels
from tests.conftest import jit

# Compiled as a whole: without jit, JAX compiles every single operation, and the tests would take minutes. What
# calls them is compiled as for a user: how XLA makes logarithms and exponentials fast may lose digits.
nig_from_raw = jax.jit(losses.nig_from_raw)
nig_nll = jax.jit(losses.nig_nll)
evidential = jax.jit(losses.evidential, static_argnames=("reg", "levels"))
uncertainty = jax.jit(losses.uncertainty)
quantile_huber = jax.jit(losses.quantile_huber, static_argnames="kappa")
calibration = jax.jit(losses.calibration, static_argnames=("variant", "sharpness"))
interval_calibration = jax.jit(losses.interval_calibration, static_argnames=("variant", "sharpness", "coverage"))

GOLDEN = np.load(Path(__file__).parent / "data" / "losses.npz")


@pytest.fixture(autouse=True, scope="module")
def _strict_promotion():
    """No array may change its rank or its dtype by accident."""
    with jax.numpy_rank_promotion("raise"), jax.numpy_dtype_promotion("strict"):
        yield


def f32(*values) -> jax.Array:
    return jnp.array(values, jnp.float32)


def gradient(term: Callable, *inputs, of: int | tuple[int, ...] = 0, **options):
    return jit(jax.grad(partial(term, **options), argnums=of))(*inputs)


def every_term(theta, target, nig: NIG) -> dict[str, jax.Array]:
    """All outputs under their names in the golden file."""
    lower, upper = nig.gamma[:, 0], nig.gamma[:, 1]
    aleatoric, epistemic = losses.uncertainty(nig)
    return {
        "quantile_huber": losses.quantile_huber(theta, target),
        "quantile_huber_kappa0": losses.quantile_huber(theta, target, kappa=0.0),
        "nig_nll": losses.nig_nll(target, nig),
        "evidential": losses.evidential(target, nig),
        "calibration_paper": losses.calibration(theta, target),
        "calibration_released": losses.calibration(theta, target, "released"),
        "interval_paper": losses.interval_calibration(lower, upper, target),
        "interval_released": losses.interval_calibration(lower, upper, target, "released"),
        "aleatoric": aleatoric,
        "epistemic": epistemic,
    }


def golden_inputs(case: int, dtype) -> tuple[jax.Array, jax.Array, NIG]:
    def read(name):
        return jnp.asarray(GOLDEN[f"case{case}/{name}"], dtype)

    return read("theta"), read("target"), NIG(read("gamma"), read("nu"), read("alpha"), read("beta"))


# ---------------------------------------------------------------------------------------------------------
# Golden values.


@pytest.mark.parametrize(("dtype", "rtol"), [("float32", 1e-4), ("float64", 1e-10)])
@pytest.mark.parametrize(("case", "run"), [(0, "jit"), (1, "jit"), (2, "jit"), (3, "jit"), (2, "eager")])
def test_golden_values(case: int, run: str, dtype: str, rtol: float):
    with jax.enable_x64(dtype == "float64"):
        terms = (jit(every_term) if run == "jit" else every_term)(*golden_inputs(case, dtype))
        inputs = {"theta", "target", "gamma", "nu", "alpha", "beta"}
        in_file = {name.split("/")[1] for name in GOLDEN.files if name.startswith(f"case{case}/")}
        assert set(terms) == in_file - inputs  # nothing in the file goes untested
        for name, value in terms.items():
            assert value.dtype == dtype
            assert_allclose(value, GOLDEN[f"case{case}/{name}"], rtol=rtol, err_msg=name)


# ---------------------------------------------------------------------------------------------------------
# Gradients against finite differences.


def check_gradients(term: Callable, *inputs, step: float = 1e-6) -> None:
    """The gradient with respect to every single input against its central difference."""
    point, unravel = ravel_pytree(inputs)

    def loss(x):
        return jnp.sum(term(*unravel(x)))

    @jit
    def both(x):
        steps = step * jnp.eye(x.size)
        above, below = jax.vmap(loss)(x[None] + steps), jax.vmap(loss)(x[None] - steps)
        return jax.grad(loss)(x), (above - below) / (2 * step)

    assert_allclose(*both(point), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("kappa", [0.0, 0.3, 1.0])
def test_gradient_of_quantile_huber(kappa: float):
    with jax.enable_x64(True):
        theta, target, _ = golden_inputs(2, "float64")
        check_gradients(partial(quantile_huber, kappa=kappa), theta, target)


@pytest.mark.parametrize("variant", ["paper", "released", "none"])
@pytest.mark.parametrize("sharpness", [0.3, 1.0])
def test_gradient_of_calibration(variant, sharpness: float):
    with jax.enable_x64(True):
        theta, target, _ = golden_inputs(2, "float64")
        check_gradients(partial(calibration, variant=variant, sharpness=sharpness), theta, target)


@pytest.mark.parametrize("variant", ["paper", "released", "none"])
@pytest.mark.parametrize("coverage", [0.1, 0.9])  # the golden intervals cover more than 10 %, less than 90 %
def test_gradient_of_interval_calibration(variant, coverage: float):
    with jax.enable_x64(True):
        _, target, nig = golden_inputs(2, "float64")
        term = partial(interval_calibration, variant=variant, coverage=coverage)
        check_gradients(term, nig.gamma[:, 0], nig.gamma[:, 1], target)


@pytest.mark.parametrize("term", [nig_nll, evidential])
def test_gradient_of_evidential_terms(term: Callable):
    with jax.enable_x64(True):
        _, target, nig = golden_inputs(2, "float64")
        check_gradients(term, target, nig)


def test_gradient_of_uncertainty_and_of_the_raw_outputs():
    with jax.enable_x64(True):
        raw = jnp.asarray(np.random.default_rng(0).normal(0, 3, (4, 3, 2, 5)))
        for which in (0, 1):
            check_gradients(lambda raw, i=which: uncertainty(nig_from_raw(*raw))[i], raw)


# ---------------------------------------------------------------------------------------------------------
# Nothing is ever infinite.


def float32s(limit: float, *shape: int):
    return arrays(np.float32, shape, elements=st.floats(-limit, limit, width=32))


@jit
def terms_and_gradients(raw, theta, target):
    """raw: [4, B, 2, N]. theta, target: [B, N]. Each term has its own gradient, for a sum could hide one."""

    def terms(raw, theta):
        return jax.tree.map(jnp.sum, every_term(theta, target, nig_from_raw(*raw)))

    return terms(raw, theta), jax.jacrev(terms, argnums=(0, 1))(raw, theta)


def assert_finite(tree) -> None:
    for path, leaf in jax.tree.leaves_with_path(tree):
        assert np.isfinite(leaf).all(), jax.tree_util.keystr(path)


@given(raw=float32s(50, 4, 3, 2, 2), theta=float32s(50, 3, 2), target=float32s(1e4, 3, 2))
@settings(max_examples=100, deadline=None)
def test_no_nan_or_inf(raw, theta, target):
    assert_finite(terms_and_gradients(raw, theta, target))


def test_no_nan_or_inf_in_any_corner():
    # Every combination of extreme and of middling raw outputs and targets.
    raws, targets = [-50.0, -14.0, 0.0, 50.0], [-1e4, -50.0, 0.0, 1e-3, 1e4]
    grid = np.stack(np.meshgrid(raws, raws, raws, raws, targets, indexing="ij")).reshape(5, -1, 1)
    raw = jnp.asarray(np.stack([grid[:4], grid[:4]], axis=2), jnp.float32)
    target = jnp.asarray(grid[4], jnp.float32)
    assert_finite(terms_and_gradients(raw, raw[0, :, 0], target))


# ---------------------------------------------------------------------------------------------------------
# The NIG parameters and their likelihood.


def test_nig_from_raw():
    raw = f32(-50.0, -1.0, 0.0, 2.0, 50.0)
    nig = nig_from_raw(raw, raw, raw, raw)
    softplus = np.logaddexp(0, np.asarray(raw, np.float64))
    assert_allclose(nig.gamma, raw)
    assert_allclose(nig.nu, softplus + 1e-6, rtol=1e-6)
    assert_allclose(nig.beta, softplus + 1e-6, rtol=1e-6)
    # float32 numbers next to 1 are 1.2e-7 apart, so alpha - 1 is its floor only to within 6 %.
    assert_allclose(nig.alpha - 1, softplus + 1e-6, rtol=1e-6, atol=6e-8)
    assert (nig.alpha - 1).min() >= 0.9e-6


def test_nig_nll_by_hand():
    # Om = 2 * 1/4 * (1 + 1) = 1, and Gamma(3/2) / Gamma(2) = sqrt(pi) / 2.
    # y = 0: 1/2 log pi - 0 + 0 + log(sqrt(pi) / 2) = log(pi / 2)
    # y = 1: the same + (3/2 + 1/2) log(1 * 1 + 1)   = log(pi / 2) + log 4 = log(2 pi)
    nig = NIG(f32(0, 0), f32(1, 1), f32(1.5, 1.5), f32(0.25, 0.25))
    assert_allclose(nig_nll(f32(0, 1), nig), [math.log(math.pi / 2), math.log(2 * math.pi)], rtol=1e-6)


def test_nig_nll_is_a_student_t():
    with jax.enable_x64(True):
        _, y, nig = golden_inputs(0, "float64")
        gamma, nu, alpha, beta = map(np.asarray, nig)
        scale = np.sqrt(beta * (1 + nu) / (nu * alpha))
        log_density = stats.t.logpdf(np.asarray(y)[:, None], df=2 * alpha, loc=gamma, scale=scale)
        assert_allclose(nig_nll(y, nig), -log_density, rtol=1e-10)


@pytest.mark.parametrize(
    ("dtype", "rtol", "atol"),
    # In float64 it is SciPy's own difference, of two numbers near a million, that limits the comparison.
    [("float32", 3e-7, 2e-7), ("float64", 0.0, 4e-10)],
)
def test_nig_nll_keeps_its_precision_for_any_alpha(dtype: str, rtol: float, atol: float):
    # At y = gamma with s = 1 / pi the likelihood is log(Gamma(alpha) / Gamma(alpha + 1/2)) alone. At 1e5 the
    # difference of two float32 lgamma, each near a million, would come in steps of a sixteenth.
    alpha = np.concatenate([1 + np.geomspace(1e-6, 1, 50), np.geomspace(2, 1e5, 100)]).astype(dtype)
    exact = gammaln(alpha.astype(np.float64)) - gammaln(alpha.astype(np.float64) + 0.5)
    with jax.enable_x64(dtype == "float64"):
        one = jnp.ones_like(jnp.asarray(alpha))
        nig = NIG(0 * one, one, jnp.asarray(alpha), one / (4 * math.pi))
        assert_allclose(nig_nll(0 * one, nig), exact, rtol=rtol, atol=atol)


def test_the_likelihood_sees_nu_only_through_s():
    # Hold s = 2 beta (1 + nu) / nu fixed and any nu explains the data as well as any other.
    with jax.enable_x64(True):
        _, y, nig = golden_inputs(2, "float64")
        s = 2 * nig.beta * (1 + nig.nu) / nig.nu

        def likelihood(nu):
            return nig_nll(y, nig._replace(nu=nu, beta=s * nu / (2 * (1 + nu))))

        assert_allclose(likelihood(100 * nig.nu), nig_nll(y, nig), rtol=1e-12)
        assert_allclose(gradient(lambda nu: likelihood(nu).sum(), nig.nu), 0 * s, atol=1e-12)


def test_nig_nll_takes_targets_with_or_without_the_percentile_axis():
    # B = 2 as well: only the rank may decide which axis is which.
    nig = NIG(*jnp.ones((4, 2, 2, 3), jnp.float32) * 2)
    y = f32([0, 1, 2], [3, 4, 5])
    assert_allclose(nig_nll(y, nig), nig_nll(y[:, None, :], nig))
    assert_allclose(nig_nll(y, nig)[1, 0], nig_nll(y, nig)[1, 1])
    assert (nig_nll(y, nig)[0] != nig_nll(y, nig)[1]).all()


# ---------------------------------------------------------------------------------------------------------
# The evidential loss and the uncertainties.


@pytest.mark.parametrize(
    ("gamma_5", "gamma_95", "tilted"),
    [
        (0.0, 2.0, 0.05 + 0.05),  # 5th below the target: q = 0.05; 95th above it: 1 - q = 0.05
        (2.0, 0.0, 0.95 + 0.95),  # the wrong way around: 1 - 0.05 and 0.95
        (0.0, 0.0, 0.05 + 0.95),
    ],
)
def test_evidential_by_hand(gamma_5: float, gamma_95: float, tilted: float):
    # Targets at 1, at distance 1 from both percentiles. Each NLL is log(2 pi), as above;
    # Phi = 2 * 1 + 1.5 + 1 / 0.25 = 7.5.
    for n in (1, 3):  # the mean over N, not the sum
        nu, alpha, beta = (jnp.full((1, 2, n), value, jnp.float32) for value in (1.0, 1.5, 0.25))
        gamma = jnp.broadcast_to(f32([[gamma_5], [gamma_95]]), (1, 2, n))
        loss = evidential(jnp.ones((1, n), jnp.float32), NIG(gamma, nu, alpha, beta), reg=0.5)
        assert_allclose(loss, 2 * math.log(2 * math.pi) + 0.5 * 7.5 * tilted, rtol=1e-6)


def test_evidential_with_other_levels():
    # As above, with the quartiles: the tilted loss of a target above both is 0.25 + 0.75.
    nig = NIG(*(jnp.full((1, 2, 1), v, jnp.float32) for v in (0.0, 1.0, 1.5, 0.25)))
    target = f32([1])
    both = [evidential(target, nig, reg=1.0, levels=levels) for levels in [(0.25, 0.75), (0.25, 0.25)]]
    assert_allclose(both, [2 * math.log(2 * math.pi) + 7.5, 2 * math.log(2 * math.pi) + 3.75], rtol=1e-6)


def test_uncertainty_by_hand():
    # sigma_5 = sqrt(4 / (1 * (2 - 1))) = 2, then 6, and sigma_95 = 3, then sqrt(1 / (0.5 * (3 - 1))) = 1:
    # epistemic = ((2 + 3) + (6 + 1)) / 2 = 6. |gamma_95 - gamma_5| = 4, then |-2|, crossed: aleatoric = 3.
    nig = NIG(
        gamma=f32([1, 1], [5, -1]),
        nu=f32([1, 1], [1, 0.5]),
        alpha=f32([2, 2], [2, 3]),
        beta=f32([4, 36], [9, 1]),
    )
    assert_allclose(uncertainty(nig), (3, 6), rtol=1e-6)
    many = jax.tree.map(lambda x: jnp.broadcast_to(x, (7, 5, 2, 2)), nig)
    assert [x.shape for x in uncertainty(many)] == [(7, 5), (7, 5)]


# ---------------------------------------------------------------------------------------------------------
# Quantile regression.


def test_quantile_levels_are_midpoints():
    assert_allclose(quantile_levels(4, "float32"), [0.125, 0.375, 0.625, 0.875], rtol=1e-7)
    assert quantile_levels(3, jnp.bfloat16).dtype == jnp.bfloat16


@pytest.mark.parametrize(
    ("kappa", "expected"),
    [
        # theta_1 = 0, tau = 1/4: e = 1 and -2.  theta_2 = 2, tau = 3/4: e = -1 and -4.
        # kappa 1: (1/4 * 0.5 + 3/4 * 1.5) / 2 + (1/4 * 0.5 + 1/4 * 3.5) / 2 = 0.625 + 0.5
        (1.0, 1.125),
        # kappa 2: (1/4 * 0.5/2 + 3/4 * 2/2) / 2 + (1/4 * 0.5/2 + 1/4 * 6/2) / 2 = 0.40625 + 0.40625
        (2.0, 0.8125),
        # pinball: (1/4 * 1 + 3/4 * 2) / 2 + (1/4 * 1 + 1/4 * 4) / 2 = 0.875 + 0.625
        (0.0, 1.5),
    ],
)
def test_quantile_huber_by_hand(kappa: float, expected: float):
    theta, target = f32([0, 2]), f32([1, -2])
    assert_allclose(quantile_huber(theta, target, kappa), expected, rtol=1e-6)
    # The mean over the batch and over the targets, and the sum over theta alone.
    theta, target = f32([0, 2], [0, 2]), f32([1, -2] * 3, [1, -2] * 3)
    assert_allclose(quantile_huber(theta, target, kappa), expected, rtol=1e-6)


def test_quantile_huber_with_small_kappa_is_nearly_the_pinball_loss():
    theta, target, _ = golden_inputs(0, "float32")
    assert_allclose(quantile_huber(theta, target, 1e-4), quantile_huber(theta, target, 0.0), rtol=1e-3)


# ---------------------------------------------------------------------------------------------------------
# Calibration of the return's quantiles.


def test_calibration_by_hand():
    # tau = 1/4, 3/4. The first quantile lies below both its targets: p = 0 < 1/4, by 1 and 3. The second
    # lies above both: p = 1 > 3/4, by 1 and 2. COV = (1 + 3 + 1 + 2) / 4 = 1.75. Each width is 2, so
    # SHARP = 2.
    theta, target = f32([0, 2], [0, 2]), f32([1, 1], [3, 0])
    assert_allclose(calibration(theta, target), 0.5 * 1.75 + 0.5 * 2)
    assert_allclose(calibration(theta, target, sharpness=0.25), 0.75 * 1.75 + 0.25 * 2)
    # COV pulls the first up and the second down, a quarter each; SHARP draws the two together, a half each.
    # Nothing else: the indicators carry no gradient.
    assert_allclose(gradient(calibration, theta, target, sharpness=0.0), [[-0.25, 0.25]] * 2)
    assert_allclose(gradient(calibration, theta, target, sharpness=1.0), [[-0.5, 0.5]] * 2)


def test_a_calibrated_quantile_is_left_alone():
    # One of four targets below the first quantile, three of four below the second: exactly 1/4 and 3/4.
    theta = jnp.broadcast_to(f32([0, 2]), (4, 2))
    target = f32([-1, -1], [1, -1], [1, 1], [1, 9])
    assert calibration(theta, target, sharpness=0.0) == 0
    assert_allclose(gradient(calibration, theta, target, sharpness=0.0), np.zeros((4, 2)))


def test_crossed_quantiles_are_not_rewarded():
    crossed = f32([5, 4, 3, 2, 1])
    assert calibration(crossed, crossed, sharpness=1.0) == 0
    assert_allclose(gradient(calibration, crossed, crossed, sharpness=1.0), np.zeros((1, 5)))
    # In order, the widths are 4, 2, 0, 2, 4.
    assert_allclose(calibration(-crossed, crossed, sharpness=1.0), 12 / 5, rtol=1e-6)


def test_calibration_released_by_hand():
    # Levels 1/3, 2/3. error = 1, -2; only the second target lies below: coverage 1/2, short = 1/2,
    # excess = -1. COV: 1/2 >= 1/3, so -1 * (1/2 - 1/3) = -1/6; 1/2 < 2/3, so 1/2 * (2/3 - 1/2) = 1/12. The
    # mean is -1/24: negative.
    # Opposite 1 - theta = 1, -1: both targets lie within [0, 1] and [-1, 2], and 1 > |2/3 - 1|, so that the
    # widths 1 and 3 count: SHARP = 2.
    theta, target = f32([0, 2]), f32([1, 0])
    assert_allclose(calibration(theta, target, "released"), 0.5 * -1 / 24 + 0.5 * 2, rtol=1e-6)
    # The lost sign: the second quantile is above its target, and descent drives it further up.
    assert gradient(calibration, theta, target, variant="released", sharpness=0.0)[0, 1] < 0


# ---------------------------------------------------------------------------------------------------------
# Calibration of the evidential interval.


@pytest.mark.parametrize(("share", "expected"), [(0.95, 12.25), (0.5, 11.25), (0.9, 11.0)])
def test_interval_calibration_with_a_share_from_elsewhere(share: float, expected: float):
    # [0, 1] against targets 2 and 1/2. The interval scores are 1 + 20 * 1 and 1, 11 on average. Over-covered: COV is
    # 2 and 1/2 + 1/2, SHARP 1, so (1/2 * 2 + 1/2 + 1/2 * 1 + 1/2) / 2 more. Under-covered: COV is 1 and 0.
    lower, upper, target = f32([0], [0]), f32([1], [1]), f32([2], [0.5])
    assert_allclose(interval_calibration(lower, upper, target, share=f32(share)), expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("target", "variant", "expected"),
    [
        # [0, 2] misses 5: COV = 3, score = 2 + 2 / 0.1 * 3 = 62.
        (5, "paper", 0.5 * 3 + 62),
        # [0, 2] holds 1: COV = 1 + 1, SHARP = 2, score = 2.
        (1, "paper", 0.5 * 2 + 0.5 * 2 + 2),
        # COV = (5 - 2) + (5 - 0), score = 2 + (2 / 0.95 + 2 / 0.05) * 3.
        (5, "released", 0.5 * 8 + 2 + (2 / 0.95 + 40) * 3),
        # COV = (2 - 1) + 0, SHARP = 2, score = 2.
        (1, "released", 0.5 * 1 + 0.5 * 2 + 2),
    ],
)
def test_interval_calibration_by_hand(target, variant, expected: float):
    assert_allclose(interval_calibration(f32([0]), f32([2]), f32([target]), variant), expected, rtol=1e-6)


def bound_gradients(target, **options) -> tuple[jax.Array, jax.Array]:
    """By how much lower = 0 and upper = 2 each raise the loss, summed over the batch of targets [B, 1]."""
    lower, upper = jnp.zeros_like(target), jnp.full_like(target, 2)
    both = gradient(interval_calibration, lower, upper, target, of=(0, 1), **options)
    return both[0].sum(), both[1].sum()


def test_an_under_covered_interval_widens():
    lower, upper = bound_gradients(f32([-5], [5], [1]))  # a third inside; descent goes against the gradient
    assert lower > 0
    assert upper < 0


def test_an_over_covered_interval_tightens():
    target = f32([1], [0.5], [1.5])  # all inside
    lower, upper = bound_gradients(target)
    assert_allclose((lower, upper), (-0.5 - 0.5 - 1, 0.5 + 0.5 + 1))  # COV, SHARP and the score's width


def test_the_coverage_goal_decides_between_the_two():
    # Half inside: under-covered for a goal of 0.9, over-covered for 0.1, and exactly on a goal of 0.5, where
    # only the interval score remains: the width 2, and 2 / 0.5 times the 1 by which one of two lies above.
    target = f32([1], [3])
    bounds = f32([0], [0]), f32([2], [2])
    at_half = interval_calibration(*bounds, target, coverage=0.5)
    assert_allclose(at_half, 2 + 4 * 1 / 2)
    # 0.9: COV = (0 + 1) / 2, score = 2 + 20 / 2. 0.1: COV = ((1 + 1) + (0 + 3)) / 2, SHARP = 2,
    # score = 2 + 2 / 0.9 / 2.
    assert_allclose(interval_calibration(*bounds, target, coverage=0.9), 0.5 * 0.5 + 12, rtol=1e-6)
    assert_allclose(interval_calibration(*bounds, target, coverage=0.1), 0.5 * 2.5 + 0.5 * 2 + 2 + 1 / 0.9, rtol=1e-6)


@pytest.mark.parametrize("batch", [10, 70])
def test_nine_of_ten_is_ninety_percent(batch: int):
    # In floating point 9 / 10 may fall on either side of 0.9; a calibrated interval must not twitch.
    target = jnp.where(jnp.arange(batch)[:, None] % 10 == 0, 3.0, 1.0)
    value = interval_calibration(jnp.zeros_like(target), jnp.full_like(target, 2), target)
    assert_allclose(value, 2 + 20 * 0.1, rtol=1e-6)


def test_released_interval_moves_the_lower_bound_the_wrong_way():
    # The lower bound reuses the upper bound's formula: it rises towards a target missed above.
    paper, released = (
        bound_gradients(f32([5]), variant=variant, sharpness=0.0)[0] for variant in ("paper", "released")
    )
    assert_allclose((paper, released), (-1, -1 - 1))  # the score's width alone; COV besides


# ---------------------------------------------------------------------------------------------------------
# The door, dtypes, and vmap.


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_variant_none_is_zero_of_the_right_dtype(dtype: str):
    x = jnp.ones((3, 4), dtype)
    for value in (calibration(x, x, "none"), interval_calibration(x, x, x, "none")):
        assert value.dtype == dtype
        assert value.shape == ()
        assert value == 0


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision(dtype: str):
    terms = jit(every_term)(*golden_inputs(0, dtype))
    for name, value in terms.items():
        assert value.dtype == dtype
        assert_allclose(value.astype("float32"), GOLDEN[f"case0/{name}"], rtol=0.05, atol=0.05, err_msg=name)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_keeps_alpha_above_one(dtype: str):
    nig = nig_from_raw(*jnp.full((4, 2, 3), -50, dtype))
    assert {x.dtype for x in nig} == {jnp.dtype(dtype)}
    assert (nig.alpha > 1).all()
    assert_finite(uncertainty(nig))


def test_numpy_arrays_are_welcome():
    theta, target = np.array([[0.0, 2.0]]), np.array([[1.0, -2.0]])
    assert_allclose(quantile_huber(theta, target), 1.125, rtol=1e-6)


def test_vmap_over_seeds():
    # The batch's share is that of each seed's own batch.
    theta, target, nig = golden_inputs(0, "float32")
    fold = [jax.tree.map(lambda x: x.reshape(4, 8, *x.shape[1:]), x) for x in (theta, target, nig)]
    together = jit(jax.vmap(every_term))(*fold)
    for i in range(4):
        alone = jit(every_term)(*jax.tree.map(lambda x, i=i: x[i], fold))
        for name, value in alone.items():
            assert_allclose(together[name][i], value, rtol=1e-5, err_msg=name)


def zeros(*shape: int) -> jax.Array:
    return jnp.zeros(shape, jnp.float32)


def nig_of(*shape: int) -> NIG:
    return NIG(*([zeros(*shape)] * 4))


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: quantile_huber(zeros(3, 5), zeros(4, 5)), ["[3, 5]", "[4, 5]"]),
        (lambda: quantile_huber(zeros(5), zeros(5)), ["theta [5]", "target [5]"]),
        (lambda: calibration(zeros(3, 5), zeros(3, 1)), ["[3, 5]", "[3, 1]"]),
        (lambda: calibration(zeros(5), zeros(5)), ["[5]"]),
        (lambda: interval_calibration(zeros(3, 5), zeros(3, 5), zeros(3, 1)), ["[3, 5]", "[3, 1]"]),
        (lambda: nig_nll(zeros(3, 4), nig_of(3, 2, 5)), ["y [3, 4]", "[3, 2, 5]"]),
        (lambda: nig_nll(zeros(5), nig_of(3, 2, 5)), ["y [5]", "[3, 2, 5]"]),
        # The accident of the authors' regression script: [B, 1] against [B] must not become [B, B].
        (lambda: nig_nll(zeros(3, 1), nig_of(3)), ["y [3, 1]", "gamma [3]"]),
        (lambda: nig_nll(zeros(3), nig_of(3)._replace(nu=zeros(1))), ["gamma [3]", "nu [1]"]),
        (lambda: evidential(zeros(3, 1), nig_of(3, 2, 5)), ["[3, 1]", "[3, 2, 5]"]),
        (lambda: evidential(zeros(3, 5), nig_of(3, 3, 5)), ["[3, 3, 5]"]),
        (lambda: uncertainty(nig_of(3, 5)), ["[3, 5]"]),
        (lambda: uncertainty(nig_of(2)), ["[2]"]),
        (lambda: nig_from_raw(zeros(3), zeros(3), zeros(1), zeros(3)), ["raw_alpha [1]", "raw_beta [3]"]),
    ],
)
def test_wrong_shapes_are_named(call: Callable, named: list[str]):
    with pytest.raises(ValueError, match="must") as error:
        call()
    for text in named:
        assert text in str(error.value)


def test_unknown_variants_are_refused():
    x = zeros(3, 5)
    with pytest.raises(ValueError, match=r"'chung'.*'paper', 'released', 'none'"):
        calibration(x, x, "chung")
    with pytest.raises(ValueError, match=r"'chung'.*'paper', 'released', 'none'"):
        interval_calibration(x, x, x, "chung")


def test_impossible_numbers_are_refused():
    x = zeros(3, 5)
    with pytest.raises(ValueError, match="kappa"):
        quantile_huber(x, x, kappa=-1.0)
    for coverage in (0.0, 1.0, 90.0):
        with pytest.raises(ValueError, match="coverage"):
            interval_calibration(x, x, x, coverage=coverage)
