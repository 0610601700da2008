"""Which layer of a network gives away what: per-layer measures and federated rounds; needs torch.

Everything here is imported on first use, so that ``import seepage`` never waits for torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from seepage.lazy import lazy_names

if TYPE_CHECKING:
    from seepage.layers.batches import PropertyBatches, property_batches
    from seepage.layers.federated import FederatedRun, simulate
    from seepage.layers.federated_update import Update
    from seepage.layers.gradients import LayerGradients
    from seepage.layers.layer_audit import LayerAudit, audit
    from seepage.layers.layer_sensitivity import sensitivity
    from seepage.layers.networks import alexnet, fcnet, vgg11net
    from seepage.layers.per_layer import PerLayer
    from seepage.layers.recorded import record_gradients, record_updates
    from seepage.layers.usable_information import v_information

__all__ = [
    "FederatedRun",
    "LayerAudit",
    "LayerGradients",
    "PerLayer",
    "PropertyBatches",
    "Update",
    "alexnet",
    "audit",
    "fcnet",
    "property_batches",
    "record_gradients",
    "record_updates",
    "sensitivity",
    "simulate",
    "v_information",
    "vgg11net",
]

_HOME = {
    "FederatedRun": "federated",
    "LayerAudit": "layer_audit",
    "LayerGradients": "gradients",
    "PerLayer": "per_layer",
    "PropertyBatches": "batches",
    "Update": "federated_update",
    "alexnet": "networks",
    "audit": "layer_audit",
    "fcnet": "networks",
    "property_batches": "batches",
    "record_gradients": "recorded",
    "record_updates": "recorded",
    "sensitivity": "layer_sensitivity",
    "simulate": "federated",
    "v_information": "usable_information",
    "vgg11net": "networks",
}

__getattr__ = lazy_names(__name__, _HOME, globals(), needs_torch=True)


def __dir__() -> list[str]:
    return __all__
