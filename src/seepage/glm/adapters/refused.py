"""Models without an exact audit: why, and the nearest thing that works."""

from __future__ import annotations

from seepage.glm.adapters.kinds import RefusedKind

_ATTACK = "Audit it by attack with sp.audit_estimator, which says how well records are told apart."
_COX = (
    "Cox's partial likelihood couples records: every event is compared with all who were then at "
    "risk, so no part of the objective is one record's own."
)
_HAZARD = (
    "Cut time into intervals and fit Poisson regression on events with the logarithm of the time "
    "at risk as offset (a piecewise exponential model), with a record for each person and interval."
)


def _no_linear_model(library: str, names: str, why: str) -> tuple[RefusedKind, ...]:
    return tuple(RefusedKind(library, name, why, _ATTACK) for name in names.split())


KINDS = (
    RefusedKind(
        "sklearn",
        "CalibratedClassifierCV",
        "A calibrated classifier is several models, of parts of the data, and curves fitted to "
        "what they say of the other parts.",
        "Audit the model inside it, fitted on all records; a LogisticRegression is calibrated as "
        "it is.",
    ),
    RefusedKind(
        "sklearn",
        "HuberRegressor",
        "Huber's regression fits the scale of the residuals together with the coefficients.",
        "Fit sp.glm.GeneralizedLinearRegression with a family of your own for a fixed scale.",
    ),
    *(
        RefusedKind(
            "sklearn",
            name,
            "This objective has kinks at the records themselves, so its minimiser has no "
            "derivative.",
            f"Fit {instead} instead.",
        )
        for name, instead in (("QuantileRegressor", "LinearRegression or Ridge"),)
    ),
    *(
        RefusedKind(
            "sklearn",
            name,
            "This model fits its own penalties together with the coefficients.",
            "Fit Ridge with alpha = model.lambda_ / model.alpha_ and audit that.",
        )
        for name in ("BayesianRidge", "ARDRegression")
    ),
    *(
        RefusedKind(
            "sklearn",
            name,
            "This model has several outputs that share their columns.",
            "Fit Lasso, ElasticNet or Ridge once for each output, and compose the releases with "
            "sp.compose.",
        )
        for name in ("MultiTaskLasso", "MultiTaskElasticNet", "MultiTaskLassoCV")
    ),
    *_no_linear_model(
        "sklearn",
        "RandomForestClassifier RandomForestRegressor ExtraTreesClassifier ExtraTreesRegressor "
        "GradientBoostingClassifier GradientBoostingRegressor HistGradientBoostingClassifier "
        "HistGradientBoostingRegressor DecisionTreeClassifier DecisionTreeRegressor",
        "Trees are cut at the records' own values, so small changes of a record move nothing and "
        "slightly larger ones a whole branch: there is no derivative to measure.",
    ),
    *_no_linear_model(
        "sklearn",
        "SVC SVR NuSVC NuSVR KNeighborsClassifier KNeighborsRegressor KernelRidge "
        "GaussianProcessClassifier GaussianProcessRegressor",
        "This model is made of the training records themselves, and whoever has it has them.",
    ),
    *_no_linear_model(
        "sklearn",
        "MLPClassifier MLPRegressor",
        "A network's training ends where it happens to end, not at a minimiser that could be "
        "differentiated.",
    ),
    *_no_linear_model(
        "sklearn",
        "LinearSVR Perceptron PassiveAggressiveClassifier",
        "This loss has no second derivative where records lie on the edge of the margin.",
    ),
    RefusedKind("statsmodels", "PHReg", _COX, _HAZARD),
    RefusedKind("skglm", "CoxEstimator", _COX, _HAZARD),
    RefusedKind("lifelines", "*", _COX, _HAZARD),
    RefusedKind("sksurv", "*", _COX, _HAZARD),
    RefusedKind(
        "statsmodels",
        "MNLogit",
        "MNLogit fixes the parameters of its first class at zero, and releases other numbers than "
        "the softmax regression that is known here.",
        "Fit scikit-learn's LogisticRegression with C=np.inf, whose probabilities are the same.",
    ),
    *(
        RefusedKind(
            "statsmodels",
            name,
            "This model fits a dispersion or a variance together with the coefficients.",
            "Fit Poisson regression, or a GLM of the Tweedie family with its power fixed.",
        )
        for name in ("NegativeBinomial", "NegativeBinomialP", "GeneralizedPoisson", "BetaModel")
    ),
    *(
        RefusedKind(
            "statsmodels",
            name,
            "This model couples the records of a group through what they share.",
            "Fit OLS or GLM with the group as a category, or take the group for the record.",
        )
        for name in ("MixedLM", "GEE", "GLSAR")
    ),
    *(
        RefusedKind(
            "statsmodels",
            name,
            "This loss is not known here.",
            "Fit Logit, whose probabilities are all but the same.",
        )
        for name in ("Probit",)
    ),
    *(
        RefusedKind(
            library,
            "*",
            "Boosted trees are cut at the records' own values, so there is no derivative to "
            "measure.",
            _ATTACK,
        )
        for library in ("xgboost", "lightgbm", "catboost")
    ),
)
