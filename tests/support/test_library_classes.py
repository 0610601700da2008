"""Whose class an object has: decided by the class itself, never by its name."""

import subprocess
import sys
from functools import cached_property

import pytest
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.linear_model import Ridge, SGDClassifier
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import all_estimators

from seepage.errors import InputError
from seepage.support.library_classes import (
    is_pipeline,
    library_class,
    library_of,
    own_name,
)


def derived(base, **members):
    return type(base.__name__, (base,), members)


class Doubling(TransformerMixin):
    """Overrides a method of an ancestor of the class that it stands behind."""

    def fit_transform(self, X, y=None, **settings):
        return 2 * X


SAME = {
    "itself": StandardScaler,
    "derived": derived(StandardScaler),
    "with settings of its own": derived(StandardScaler, __init__=lambda self, extra=1: None),
    "with a method of its own": derived(StandardScaler, describe=lambda self: "mine"),
    "with names of its own": derived(StandardScaler, get_feature_names_out=lambda self: ["a"]),
}
OTHERS = {
    "transform": derived(StandardScaler, transform=lambda self, X: X),
    "fit": derived(StandardScaler, fit=lambda self, X, y=None: self),
    "partial_fit": derived(StandardScaler, partial_fit=lambda self, X, y=None: self),
    "fit_transform": type("Mixed", (StandardScaler, Doubling), {}),
    "scale_": derived(StandardScaler, scale_=property(lambda self: 1.0)),
    "mean_": derived(StandardScaler, mean_=cached_property(lambda self: 0.0)),
    "__getattribute__": derived(StandardScaler, __getattribute__=lambda self, name: None),
}


@pytest.mark.parametrize("case", SAME)
def test_a_class_that_overrides_nothing_is_the_librarys(case):
    thing = SAME[case]()
    assert own_name(thing, "sklearn") == "StandardScaler"
    assert library_class(thing, ("sklearn",)).cls is StandardScaler


@pytest.mark.parametrize("method", OTHERS)
def test_a_class_that_overrides_a_method_is_not(method):
    thing = object.__new__(OTHERS[method])
    found = library_class(thing, ("sklearn",))
    assert found.cls is StandardScaler
    assert found.overrides == method
    assert own_name(thing, "sklearn") is None


def test_what_a_class_computes_with_counts_as_well():
    assert own_name(derived(SGDClassifier, loss_functions={})(), "sklearn") is None


def test_a_method_replaced_on_one_object_alone():
    model = Ridge()
    assert own_name(model, "sklearn") == "Ridge"
    model.predict = lambda X: 0
    assert library_class(model, ("sklearn",)).overrides == "predict"


def test_a_name_is_not_a_class():
    own = type("StandardScaler", (TransformerMixin, BaseEstimator), {})
    assert own_name(own(), "sklearn", ("StandardScaler",)) is None
    stranger = type("StandardScaler", (), {"__module__": StandardScaler.__module__})
    assert stranger.__module__.startswith("sklearn.")
    assert library_of(stranger) is None
    assert library_of(StandardScaler) == "sklearn"


def test_a_pipeline_that_overrides_something_is_refused():
    steps = [("scale", StandardScaler()), ("model", Ridge())]
    assert is_pipeline(Pipeline(steps))
    assert is_pipeline(derived(Pipeline)(steps))
    assert not is_pipeline(type("Pipeline", (), {})())
    with pytest.raises(InputError, match="overrides fit of scikit-learn's"):
        is_pipeline(derived(Pipeline, fit=lambda self, X, y: self)(steps))


def test_every_estimator_of_scikit_learn_is_its_own():
    """Also through an empty derived class, into which scikit-learn writes members of its own."""
    for name, cls in all_estimators():
        assert library_of(cls) == "sklearn", name
        found = library_class(object.__new__(derived(cls)), ("sklearn",))
        assert (found.cls, found.overrides) == (cls, None), name


def test_asking_imports_no_library():
    code = (
        "import sys; from seepage.support.library_classes import own_name;"
        "own_name(3, 'sklearn'); assert not {'sklearn', 'torch', 'statsmodels'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)  # noqa: S603 - our own code
