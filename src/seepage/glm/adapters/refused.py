"""Models without an exact audit, with the reason and the closest alternative."""

from __future__ import annotations

from seepage.glm.adapters.registry import RefusedKind

_ATTACK = (
    "Audit it by attack with sp.audit(model, X, y), which measures how well an attacker "
    "distinguishes members from non-members."
)
_COX = (
    "Cox's partial likelihood couples records: each event is compared with everybody who is at "
    "risk at that time, so the objective is not a sum over records."
)
_HAZARD = (
    "Split time into intervals, make one record per person and interval, and fit a Poisson "
    "regression of the events, with the logarithm of the time at risk as offset (a piecewise "
    "exponential model)."
)


NETWORK = RefusedKind(
    "torch",
    "*",
    "A torch module has no fit or predict method.",
    "Audit it by attack with sp.audit(net, X, y); measure one private step with sp.leakage(net, "
    "X, y, noise_multiplier=1.0, max_grad_norm=1.0), or a whole Opacus run with "
    'sp.nn.attach(optimizer, net, "cross_entropy", loader).',
)


def _refused(library: str, names: str, why: str, instead: str = _ATTACK) -> tuple[RefusedKind, ...]:
    return tuple(RefusedKind(library, name, why, instead) for name in names.split())


KINDS = (
    *_refused(
        "sklearn",
        "CalibratedClassifierCV",
        "A calibrated classifier consists of several models, each fitted on part of the data, and "
        "of calibration curves fitted to their predictions on the remaining data.",
        "Audit its base model, fitted on all records; a LogisticRegression requires no "
        "calibration.",
    ),
    *_refused(
        "sklearn",
        "HuberRegressor",
        "Huber regression fits the scale of the residuals together with the coefficients.",
        "Fix the scale and fit sp.glm.GeneralizedLinearRegression with a custom family.",
    ),
    *_refused(
        "sklearn",
        "QuantileRegressor",
        "The objective is not differentiable where the fit passes through a record, so its "
        "minimiser has no derivative.",
        "Fit LinearRegression or Ridge instead.",
    ),
    *_refused(
        "sklearn",
        "BayesianRidge ARDRegression",
        "This model fits its penalties together with the coefficients.",
        "Fit Ridge with a fixed alpha (BayesianRidge: model.lambda_ / model.alpha_).",
    ),
    *_refused(
        "sklearn",
        "MultiTaskLasso MultiTaskElasticNet MultiTaskLassoCV",
        "This model has several outputs, coupled by its penalty.",
        "Fit Lasso, ElasticNet or Ridge once for each output, and compose the releases with "
        "sp.compose.",
    ),
    *_refused(
        "sklearn",
        "RandomForestClassifier RandomForestRegressor ExtraTreesClassifier ExtraTreesRegressor "
        "GradientBoostingClassifier GradientBoostingRegressor HistGradientBoostingClassifier "
        "HistGradientBoostingRegressor DecisionTreeClassifier DecisionTreeRegressor",
        "Tree models are not differentiable in the training data, so FIL is undefined.",
    ),
    *_refused(
        "sklearn",
        "SVC SVR NuSVC NuSVR KNeighborsClassifier KNeighborsRegressor KernelRidge "
        "GaussianProcessClassifier GaussianProcessRegressor",
        "This model stores training records, so publishing the model publishes these records.",
    ),
    *_refused(
        "sklearn",
        "MLPClassifier MLPRegressor",
        "Training of a network stops before a minimiser, so there is no minimiser to "
        "differentiate.",
    ),
    *_refused(
        "sklearn",
        "LinearSVR Perceptron PassiveAggressiveClassifier",
        "The loss of this model has no second derivative for records exactly on the margin.",
    ),
    RefusedKind("statsmodels", "PHReg", _COX, _HAZARD),
    RefusedKind("skglm", "CoxEstimator", _COX, _HAZARD),
    RefusedKind("lifelines", "*", _COX, _HAZARD),
    RefusedKind("sksurv", "*", _COX, _HAZARD),
    *_refused(
        "statsmodels",
        "MNLogit",
        "MNLogit fixes the parameters of its first class at zero, so its coefficients differ from "
        "those of the supported softmax regression.",
        "Fit scikit-learn's LogisticRegression with C=np.inf, whose probabilities are the same.",
    ),
    *_refused(
        "statsmodels",
        "NegativeBinomial NegativeBinomialP GeneralizedPoisson BetaModel",
        "This model fits a dispersion or variance together with the coefficients.",
        "Fit a Poisson regression, or a Tweedie GLM with a fixed power.",
    ),
    *_refused(
        "statsmodels",
        "MixedLM GEE GLSAR",
        "This model couples the records of a group through shared effects or errors.",
        "Fit OLS or GLM with the group as a category, or treat each group as one record.",
    ),
    *_refused(
        "statsmodels",
        "Probit",
        "The probit loss is not implemented.",
        "Fit Logit, whose probabilities are almost the same.",
    ),
    *(
        RefusedKind(
            library,
            "*",
            "Boosted trees are not differentiable in the training data, so FIL is undefined.",
            _ATTACK,
        )
        for library in ("xgboost", "lightgbm", "catboost")
    ),
    NETWORK,
)
