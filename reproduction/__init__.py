"""Every table and figure of the papers that can be reproduced, by the name people type.

A name belongs to the module of the same name (``fil-table1`` to ``fil/table1``), which has one
function ``reproduce(quick)`` that returns an :class:`~reproduction.outcome.Outcome`. To add one,
write that module and give it a line in the list below.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

from seepage.errors import InputError, nearest

if TYPE_CHECKING:
    from reproduction.outcome import Outcome

__all__ = ["EXPERIMENTS", "PAPERS", "Experiment", "find_experiment", "list_lines"]


@dataclass(frozen=True)
class Paper:
    """A paper: its title, its address and its topic in a few words."""

    title: str
    address: str
    topic: str


PAPERS = {
    "Hannun et al. 2021": Paper(
        "Measuring Data Leakage in Machine-Learning Models with Fisher Information",
        "https://arxiv.org/abs/2102.11673",
        "Fisher information loss",
    ),
    "Mueller et al. 2022": Paper(
        "How Do Input Attributes Impact the Privacy Loss in Differential Privacy?",
        "https://arxiv.org/abs/2211.10173",
        "PLIS",
    ),
    "Mo et al. 2021": Paper(
        "Layer-wise Characterization of Latent Information Leakage in Federated Learning",
        "https://arxiv.org/abs/2010.08762",
        "layers in federated learning",
    ),
    "Guo et al. 2022": Paper(
        "Bounding Training Data Reconstruction in Private (Deep) Learning",
        "https://arxiv.org/abs/2201.12383",
        "bounds on reconstruction",
    ),
}


@dataclass(frozen=True)
class Experiment:
    """One table or figure.

    Parameters
    ----------
    name
        What people type.
    paper
        The paper, by authors and year.
    place
        Its place in the paper.
    title
        What it shows.
    topic
        The topic of its page, if a paper has more than one.
    """

    name: str
    paper: str
    place: str
    title: str
    topic: str = ""

    @property
    def room(self) -> str:
        """The prefix of all experiments of the paper, which is their folder."""
        return self.name.partition("-")[0]

    @property
    def page(self) -> str:
        """The page of the documentation that shows it."""
        return "-".join([self.room, *self.topic.split()])

    @property
    def code(self) -> str:
        """The file of the repository that computes it."""
        return f"reproduction/{self.room}/{self._place}.py"

    @property
    def _place(self) -> str:
        return self.name.partition("-")[2].replace("-", "_")

    def reproduce(self, *, quick: bool = False) -> Outcome:
        """Reproduce it; ``quick`` takes less data or fewer trials, as a smoke test."""
        module = import_module(f"reproduction.{self.room}.{self._place}")
        outcome: Outcome = module.reproduce(quick)
        return outcome


_LIST = (
    Experiment(
        "fil-table1",
        "Hannun et al. 2021",
        "Table 1",
        "Leakage and accuracy before and after IRFIL",
        topic="reweighting",
    ),
    Experiment(
        "fil-figure2", "Hannun et al. 2021", "Figure 2", "Leakage of the records of each class"
    ),
    Experiment(
        "fil-figure3", "Hannun et al. 2021", "Figure 3", "The images that leak least and most"
    ),
    Experiment(
        "fil-overlap",
        "Hannun et al. 2021",
        "section 6.2",
        "Which records leak most from both models",
    ),
    Experiment(
        "fil-figure4", "Hannun et al. 2021", "Figure 4", "Leakage against loss and gradient norm"
    ),
    Experiment(
        "fil-figure5",
        "Hannun et al. 2021",
        "Figure 5",
        "Spread of the leakage over rounds of IRFIL",
        topic="reweighting",
    ),
    Experiment(
        "fil-figure6",
        "Hannun et al. 2021",
        "Figure 6",
        "Attribute inversion against leakage",
        topic="attribute inversion",
    ),
    Experiment(
        "fil-figure7",
        "Hannun et al. 2021",
        "Figure 7",
        "Attribute inversion over rounds of IRFIL",
        topic="attribute inversion",
    ),
    Experiment(
        "fil-whole-procedure",
        "Hannun et al. 2021",
        "section 5",
        "What IRFIL leaks through its weights",
        topic="reweighting",
    ),
    Experiment(
        "fil-objective-perturbation",
        "Hannun et al. 2021",
        "section 7",
        "Leakage of objective perturbation",
    ),
    Experiment(
        "bounds-section4",
        "Guo et al. 2022",
        "sections 2 to 4",
        "What ε means for membership and numbers",
    ),
    Experiment(
        "bounds-figure2", "Guo et al. 2022", "Figure 2", "What RDP and dFIL guarantee for MNIST"
    ),
    Experiment(
        "bounds-figure3", "Guo et al. 2022", "Figure 3", "The attack's error against the dFIL bound"
    ),
    Experiment(
        "bounds-figure4",
        "Guo et al. 2022",
        "Figure 4",
        "Images that leak most and least, reconstructed",
    ),
    Experiment(
        "bounds-figure5",
        "Guo et al. 2022",
        "Figure 5",
        "Accuracy against bounds in private SGD",
        topic="private training",
    ),
    Experiment(
        "bounds-figure6",
        "Guo et al. 2022",
        "Figure 6",
        "Images that private SGD leaks most about",
        topic="private training",
    ),
    Experiment(
        "bounds-weighted-sgd",
        "Guo et al. 2022",
        "section 6",
        "Private SGD with equalised leakage",
        topic="private training",
    ),
    Experiment(
        "layers-figure1",
        "Mo et al. 2021",
        "Figure 1",
        "What each layer leaks, by two measures and an attack",
    ),
    Experiment(
        "layers-figure2",
        "Mo et al. 2021",
        "Figure 2",
        "Attacks on several properties, layer by layer",
    ),
    Experiment(
        "layers-figure3", "Mo et al. 2021", "Figure 3", "Sensitivity under different main tasks"
    ),
    Experiment(
        "plis-figure1",
        "Mueller et al. 2022",
        "Figure 1",
        "FIL and PLIS of informative and other features",
    ),
    Experiment(
        "plis-figure2",
        "Mueller et al. 2022",
        "Figure 2",
        "PLIS of digits and outliers, pixel by pixel",
    ),
    Experiment(
        "plis-figure3",
        "Mueller et al. 2022",
        "Figure 3",
        "X-rays reconstructed from gradients, and their PLIS",
    ),
    Experiment(
        "plis-table1",
        "Mueller et al. 2022",
        "Table 1",
        "Whether PLIS predicts which X-rays can be reconstructed",
    ),
)

EXPERIMENTS = {experiment.name: experiment for experiment in _LIST}


def find_experiment(name: str) -> Experiment:
    """Return the experiment of that name, or suggest the nearest name.

    Examples
    --------
    >>> from reproduction import find_experiment
    >>> find_experiment("fil-table1").place
    'Table 1'
    """
    if name not in EXPERIMENTS:
        raise InputError(
            f"There is no experiment {name!r}{nearest(name, [*EXPERIMENTS, 'all'])}; "
            "`seepage reproduce --list` shows all names."
        )
    return EXPERIMENTS[name]


def list_lines() -> Iterator[str]:
    """Yield a line for every experiment: its name, its place and paper, its title."""
    rows = [("NAME", "PAPER", "WHAT IT SHOWS")]
    rows += [(e.name, f"{e.paper}, {e.place}", e.title) for e in EXPERIMENTS.values()]
    first, second = (max(len(row[j]) for row in rows) for j in (0, 1))
    for name, place, title in rows:
        yield f"{name:<{first}}  {place:<{second}}  {title}"
