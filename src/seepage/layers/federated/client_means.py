"""Each client's mean update over the rounds so far, minus the mean over all clients.

From every update, the mean over its round (the common course of training) is subtracted. Every
round is then rescaled, so that late, small updates count as much as early, large ones. Then a
client's updates are averaged over the rounds of all runs. Runs start from different models, so the
mean over a round is subtracted separately in each run.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from seepage.errors import InputError
from seepage.layers.federated.client_identity import same_client, separate_runs
from seepage.layers.federated.gradients import LayerGradients


@dataclass(frozen=True)
class ClientRounds:
    """The client and the round of each update.

    Parameters
    ----------
    clients, rounds
        The clients and the rounds, in order. A recording without rounds is treated as a single
        round.
    client, round
        The positions of every update's client and round in ``clients`` and ``rounds``, ``(n,)``.
    run
        The run of every update, ``(n,)``.
    """

    clients: tuple[object, ...]
    rounds: tuple[int, ...]
    client: np.ndarray
    round: np.ndarray
    run: np.ndarray

    @staticmethod
    def of(gradients: LayerGradients) -> ClientRounds:
        """Return the clients and rounds of a recording, which must include nodes.

        Examples
        --------
        >>> import numpy as np
        >>> from seepage.layers import LayerGradients
        >>> from seepage.layers.federated.client_means import ClientRounds
        >>> seen = LayerGradients(
        ...     {"fc": np.ones((4, 2))}, {"fc": 2}, np.ones((4, 1)), {"fc": np.ones(2)},
        ...     nodes=np.array([7, 9, 7, 9]), rounds=np.array([1, 1, 2, 2]),
        ... )
        >>> ClientRounds.of(seen).clients
        (7, 9)
        """
        keys = same_client(gradients)
        if keys is None:
            raise InputError(
                "The recording does not identify the client of each update; record with nodes=, or "
                "with sp.layers.UpdateRecorder."
            )
        clients, client = np.unique(keys, return_inverse=True)
        if len(clients) < 2:
            raise InputError(
                "All updates come from one client, so there is no other client for comparison; "
                "record more clients."
            )
        who, runs = tuple(clients.tolist()), separate_runs(gradients)
        if gradients.rounds is None:
            return ClientRounds(who, (1,), client, np.zeros_like(client), runs)
        rounds, number = np.unique(gradients.rounds, return_inverse=True)
        return ClientRounds(who, tuple(int(r) for r in rounds), client, number, runs)

    def means(self, block: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield the clients' mean deviations from the means of their rounds, after every round.

        The second result is a mask of the clients that have a deviation. A round with a single
        update has no other updates for comparison and is skipped.
        """
        total = np.zeros((len(self.clients), block.shape[1]))
        count = np.zeros(len(self.clients))
        for k in range(len(self.rounds)):
            for run in np.unique(self.run):
                rows = np.flatnonzero((self.round == k) & (self.run == run))
                if len(rows) > 1:
                    own = np.asarray(block[rows], dtype=float)
                    own -= own.mean(axis=0)
                    scale = float(np.sqrt(np.mean(own**2)))
                    np.add.at(total, self.client[rows], own / scale if scale > 0 else own)
                    np.add.at(count, self.client[rows], 1)
            yield total / np.maximum(count, 1)[:, None], count > 0
