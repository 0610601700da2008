"""Each client's mean update over the rounds so far, minus the mean over all clients.

The mean update of the round, the common course of training, is subtracted from every update.
Every round is then rescaled, so that small, late updates have as much weight as large, early
updates. Finally, each client's updates are averaged over the rounds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from seepage.errors import InputError
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
        The positions of each update's client and round in these sequences, ``(n,)``.
    """

    clients: tuple[object, ...]
    rounds: tuple[int, ...]
    client: np.ndarray
    round: np.ndarray

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
        if gradients.nodes is None:
            raise InputError(
                "The recording does not identify the client of each update; record with nodes=, or "
                "with Flower's recorder."
            )
        clients, client = np.unique(gradients.nodes, return_inverse=True)
        if len(clients) < 2:
            raise InputError(
                "All updates come from one client, so there is no other client for comparison; "
                "record more clients."
            )
        if gradients.rounds is None:
            return ClientRounds(tuple(clients.tolist()), (1,), client, np.zeros_like(client))
        rounds, number = np.unique(gradients.rounds, return_inverse=True)
        return ClientRounds(tuple(clients.tolist()), tuple(int(r) for r in rounds), client, number)

    def means(self, block: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield each client's deviation after every round, ``(clients, width)``, and a mask.

        A round with a single update has no other updates for comparison and is skipped.
        """
        total = np.zeros((len(self.clients), block.shape[1]))
        count = np.zeros(len(self.clients))
        for k in range(len(self.rounds)):
            rows = np.flatnonzero(self.round == k)
            if len(rows) > 1:
                own = np.asarray(block[rows], dtype=float)
                own -= own.mean(axis=0)
                scale = float(np.sqrt(np.mean(own**2)))
                np.add.at(total, self.client[rows], own / scale if scale > 0 else own)
                np.add.at(count, self.client[rows], 1)
            yield total / np.maximum(count, 1)[:, None], count > 0
