"""Leakage of each layer of a network, including over federated rounds (requires torch).

``measures`` computes one value per layer, with a confidence interval; ``federated`` simulates or
records the updates that clients send. The audits combine these measures with the recorded updates.
Measures for a whole network are in :mod:`seepage.nn`, and attacks on recordings in
:mod:`seepage.attacks`.

All names are imported on first use, so that ``import seepage`` does not import torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from seepage.support.lazy import lazy_names

if TYPE_CHECKING:
    from seepage.layers.federated.flower import RecordingStrategy as RecordingStrategy
    from seepage.layers.federated.flower import UpdateRecorder as UpdateRecorder
    from seepage.layers.federated.flower import recording_mod as recording_mod
    from seepage.layers.federated.gradients import LayerGradients as LayerGradients
    from seepage.layers.federated.local_training import LocalTraining as LocalTraining
    from seepage.layers.federated.recording import record_gradients as record_gradients
    from seepage.layers.federated.recording import record_updates as record_updates
    from seepage.layers.federated.remedies import UpdateRemedy as UpdateRemedy
    from seepage.layers.federated.rounds import FederatedRun as FederatedRun
    from seepage.layers.federated.rounds import Update as Update
    from seepage.layers.federated.rounds import simulate as simulate
    from seepage.layers.federated.stored_recordings import load_gradients as load_gradients
    from seepage.layers.federated.stored_recordings import load_models as load_models
    from seepage.layers.federated.stored_recordings import save_gradients as save_gradients
    from seepage.layers.layer_audit import LayerAudit as LayerAudit
    from seepage.layers.layer_audit import audit as audit
    from seepage.layers.layer_audit import audit_updates as audit_updates
    from seepage.layers.measures.client_scores import ClientScores as ClientScores
    from seepage.layers.measures.client_scores import ScoreTest as ScoreTest
    from seepage.layers.measures.first_round import RoundByRound as RoundByRound
    from seepage.layers.measures.first_round import since_when as since_when
    from seepage.layers.measures.per_layer import PerLayer as PerLayer
    from seepage.layers.measures.property_batches import PropertyBatches as PropertyBatches
    from seepage.layers.measures.property_batches import property_batches as property_batches
    from seepage.layers.measures.sensitivity import sensitivity as sensitivity
    from seepage.layers.measures.standing_out import StandingOut as StandingOut
    from seepage.layers.measures.standing_out import standing_out as standing_out
    from seepage.layers.measures.update_leakage import UpdateLeakage as UpdateLeakage
    from seepage.layers.measures.update_leakage import update_leakage as update_leakage
    from seepage.layers.measures.v_information import FewGroupsWarning as FewGroupsWarning
    from seepage.layers.measures.v_information import v_information as v_information
    from seepage.layers.recording_audit import RecordingAudit as RecordingAudit
    from seepage.layers.recording_audit import audit_recording as audit_recording

__getattr__, __dir__ = lazy_names(__name__, globals(), needs_torch=True)
