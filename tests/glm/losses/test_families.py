"""Losses and their derivatives: what is stated agrees with differences of the loss."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from seepage.core.jacobian import simplex_basis
from seepage.errors import InputError
from seepage.glm import Family, GeneralizedLinearRegression, losses, register_family
from seepage.glm.losses import (
    Categorical,
    bernoulli,
    gaussian,
    get_family,
    poisson,
    probe_points,
    tweedie,
)

BUILT_IN = [gaussian, bernoulli, poisson]


def root(m, y):
    return (1 + (m - y) ** 2) ** 0.5


def pseudo_huber():
    return Family(
        "pseudo-huber",
        loss=lambda m, y: root(m, y) - 1,
        slope=lambda m, y: (m - y) / root(m, y),
        curvature=lambda m, y: root(m, y) ** -3,
        label_slope=lambda m, y: -(root(m, y) ** -3),
        mean=lambda m: m,
    )


@pytest.fixture
def registry(monkeypatch):
    known = dict(losses._registry)
    monkeypatch.setattr(losses, "_registry", known)
    return known


@pytest.mark.parametrize("family", [*BUILT_IN, pseudo_huber()], ids=lambda f: f.name)
def test_stated_derivatives_are_right(family):
    losses.check_derivatives(family)


@pytest.mark.parametrize("name", ["slope", "curvature", "label_slope"])
@pytest.mark.parametrize("family", [*BUILT_IN, pseudo_huber()], ids=lambda f: f.name)
def test_wrong_derivative_is_named(family, name):
    right = getattr(family, name)
    wrong = replace(family, **{name: lambda m, y: right(m, y) + 1e-4})
    with pytest.raises(InputError, match=rf"^{name} of family .*difference 0.0001\)"):
        losses.check_derivatives(wrong)


def test_derivative_that_is_not_a_number_is_refused():
    with pytest.raises(InputError, match="slope of family"):
        losses.check_derivatives(replace(gaussian, slope=lambda m, y: m * np.nan))


def test_concave_loss_is_refused():
    concave = Family(
        "concave",
        loss=lambda m, y: -0.5 * (m - y) ** 2,
        slope=lambda m, y: y - m,
        curvature=lambda m, y: 0 * m - 1,
        label_slope=lambda m, y: 0 * m + 1,
        mean=lambda m: m,
    )
    with pytest.raises(InputError, match="curvature of family 'concave' is negative"):
        losses.check_derivatives(concave)


def test_loss_linear_in_the_margin_has_no_curvature():
    perceptron = Family(
        "linear",
        loss=lambda m, y: 3.0 * m,
        slope=lambda m, y: 0 * m + 3.0,
        curvature=lambda m, y: 0 * m,
        label_slope=lambda m, y: 0 * m,
        mean=lambda m: m,
    )
    losses.check_derivatives(perceptron)


def test_extrapolated_differences_agree_with_torch():
    for family in BUILT_IN:
        margins, labels = probe_points(family)
        truths = losses._by_differences(family, margins, labels)
        m, y = torch.tensor(margins), torch.tensor(labels)

        def slope(m, y, family=family):
            return torch.func.grad(family.loss)(m, y)

        by_margin, by_label = (torch.func.grad(slope, argnums=k) for k in (0, 1))
        exact = {"slope": slope, "curvature": by_margin, "label_slope": by_label}
        exact["curvature_slope"] = torch.func.grad(by_margin)
        exact["curvature_label_slope"] = torch.func.grad(by_margin, argnums=1)
        exact["label_curvature"] = torch.func.grad(by_label, argnums=1)
        for name, derivative in exact.items():
            values = torch.func.vmap(derivative)(m, y).numpy()
            np.testing.assert_allclose(truths[name], values, atol=1e-10)


def test_registered_family_can_be_fitted(registry):
    register_family(pseudo_huber())
    assert get_family("pseudo-huber").name == "pseudo-huber"
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 3))
    y = X @ [1.0, -2.0, 0.5] + rng.standard_t(2, size=60)
    model = GeneralizedLinearRegression("pseudo-huber", l2=0.01).fit(X, y)
    r = X @ model.coef_ - y
    gradient = X.T @ (r / np.sqrt(1 + r**2)) + 60 * 0.01 * model.coef_
    np.testing.assert_allclose(gradient, 0, atol=1e-13)


def test_wrong_family_is_not_registered(registry):
    with pytest.raises(InputError, match="label_slope"):
        register_family(replace(pseudo_huber(), label_slope=lambda m, y: -1.0 + 0 * m))
    assert "pseudo-huber" not in registry


def test_unknown_family_suggests_the_nearest():
    with pytest.raises(InputError, match="did you mean 'poisson'"):
        GeneralizedLinearRegression("poison").fit([[1.0], [2.0]], [1, 2])


@pytest.mark.parametrize("classes", [2, 3, 7])
def test_categorical_derivatives_agree_with_autodiff(classes):
    rng = np.random.default_rng(classes)
    M = torch.tensor(3 * rng.normal(size=(5, classes)))
    Y = torch.tensor(rng.dirichlet(np.ones(classes), size=5))
    family = Categorical(classes)

    def loss(m, y):
        return family.loss(m[None], y[None])[0]

    T = torch.tensor(simplex_basis(classes))
    for i in range(5):
        slope = torch.func.grad(loss)(M[i], Y[i])
        curvature = torch.func.hessian(loss)(M[i], Y[i])
        mixed = torch.func.jacrev(torch.func.grad(loss), argnums=1)(M[i], Y[i]) @ T
        torch.testing.assert_close(family.slope(M, Y)[i], slope)
        torch.testing.assert_close(family.curvature(M, Y)[i], curvature)
        torch.testing.assert_close(family.label_slope(M, Y)[i], mixed)
    inside = family.loss(M.numpy(), Y.numpy())
    np.testing.assert_allclose(inside, family.loss(M, Y).numpy(), rtol=1e-14)


def test_categorical_is_exact_where_a_class_is_certain():
    M = np.asarray([[800.0, 0.0, 760.0]])
    A = Categorical(3).curvature(M, None)[0]
    np.testing.assert_allclose(A[0, 0], np.exp(-40.0), rtol=1e-12)
    np.testing.assert_allclose(A.sum(axis=0), 0, atol=1e-30)
    assert np.isfinite(Categorical(3).loss(M, np.eye(3)[:1])).all()


@pytest.mark.parametrize("classes", [2, 3, 10])
def test_tangent_basis_is_orthonormal_and_sums_to_zero(classes):
    T = simplex_basis(classes)
    np.testing.assert_allclose(T.T @ T, np.eye(classes - 1), atol=1e-15)
    np.testing.assert_allclose(T.sum(axis=0), 0, atol=1e-15)


def test_categorical_needs_two_classes():
    with pytest.raises(InputError, match="at least 2 classes"):
        Categorical(1)


def test_tweedie_lies_between_poisson_and_gamma():
    assert tweedie(1) is poisson
    m, y = np.array([-1.0, 0.5, 2.0]), np.array([0.3, 1.0, 4.0])
    for power, variance in ((1.5, np.exp(1.5 * m)), (2, np.exp(2 * m))):
        known = (np.exp(m) - y) * np.exp(m) / variance  # of half the deviance, by the log link
        np.testing.assert_allclose(tweedie(power).slope(m, y), known, rtol=1e-12)
    with pytest.raises(InputError, match="convex loss for powers from 1 to 2, not for 3; choose"):
        tweedie(3)


def test_gamma_takes_positive_labels_only():
    model = GeneralizedLinearRegression("gamma")
    with pytest.raises(InputError, match=r"is not valid for .*: 2 labels are not positive"):
        model.fit(np.arange(6.0)[:, None], np.array([1.0, 0.0, 2.0, -1.0, 1.0, 3.0]))
