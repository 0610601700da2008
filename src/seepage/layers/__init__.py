"""Which layer of a network gives away what: per-layer measures and federated rounds; needs torch.

``measures`` has one number per layer, with its interval; ``federated`` what leaves the clients,
simulated or recorded. The audit joins the two. What holds for a network as a whole is in
:mod:`seepage.nn`, and attacks on what is recorded here in :mod:`seepage.attacks`.

Everything here is imported on first use, so that ``import seepage`` never waits for torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from seepage.support.lazy import lazy_names

if TYPE_CHECKING:
    from seepage.layers.federated.gradients import LayerGradients
    from seepage.layers.federated.local_training import LocalTraining
    from seepage.layers.federated.recording import record_gradients, record_updates
    from seepage.layers.federated.remedies import UpdateRemedy
    from seepage.layers.federated.rounds import FederatedRun, Update, simulate
    from seepage.layers.layer_audit import LayerAudit, audit, audit_updates
    from seepage.layers.measures.first_round import RoundByRound, since_when
    from seepage.layers.measures.per_layer import PerLayer
    from seepage.layers.measures.property_batches import PropertyBatches, property_batches
    from seepage.layers.measures.sensitivity import sensitivity
    from seepage.layers.measures.standing_out import StandingOut, standing_out
    from seepage.layers.measures.update_leakage import UpdateLeakage, update_leakage
    from seepage.layers.measures.v_information import FewGroupsWarning, v_information
    from seepage.layers.recording_audit import RecordingAudit, audit_recording

__all__ = [
    "FederatedRun",
    "FewGroupsWarning",
    "LayerAudit",
    "LayerGradients",
    "LocalTraining",
    "PerLayer",
    "PropertyBatches",
    "RecordingAudit",
    "RoundByRound",
    "StandingOut",
    "Update",
    "UpdateLeakage",
    "UpdateRemedy",
    "audit",
    "audit_recording",
    "audit_updates",
    "property_batches",
    "record_gradients",
    "record_updates",
    "sensitivity",
    "simulate",
    "since_when",
    "standing_out",
    "update_leakage",
    "v_information",
]

__getattr__, __dir__ = lazy_names(__name__, globals(), needs_torch=True)
