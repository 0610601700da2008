"""What each paper claims, and what we found: the head of its page, in a few sentences.

The words name no number: the numbers are below them, where they are measured.
"""

from __future__ import annotations

from typing import NamedTuple


class Claims(NamedTuple):
    """A paper's claims, partly in its own words, and our findings, in Markdown."""

    claims: str
    holds: str
    fails: str
    deviations: str
    asked: str

    def lines(self) -> list[str]:
        """Return a paragraph for each."""
        return [
            f"- **Claims:** {self.claims}",
            f"- **Holds up:** {self.holds}",
            f"- **Open or refuted:** {self.fails}",
            f"- **Deviations:** {self.deviations}",
            f"- **To ask the authors:** {self.asked}",
        ]


CLAIMS = {
    "Hannun et al. 2021": Claims(
        "Fisher information loss “measures leakage with respect to specific examples, attributes, "
        "or sub-populations”, predicts attribute inversion, and can be equalised by reweighting "
        "(IRFIL).",
        "all of this, and every printed number but one.",
        "if the choice of the weights is counted, reweighted records do not leak equally "
        "([fil-whole-procedure](fil-reweighting.md#fil-whole-procedure)).",
        "penalties and dropped levels are those of the authors' code, not of the text.",
        "Is the one differing mean of Table 1 a root mean square?",
    ),
    "Guo et al. 2022": Claims(
        "Rényi differential privacy and Fisher information leakage “both offer strong semantic "
        "protection against data reconstruction attacks”; dFIL gives the larger bound and ranks "
        "records as an attack does.",
        "on MNIST, dFIL's bound exceeds that of RDP at equal accuracy, ranks records as an attack "
        "does, and is attained.",
        "the printed ε of output perturbation assumes gradients of norm one; the accuracies up "
        "to which the RDP bound is informative are not reproduced.",
        "the network of the authors' code, not of Table 1; random probes instead of coordinates.",
        "In what unit is the CIFAR-10 error given? Do neighbouring data sets differ by removing or "
        "by replacing a record?",
    ),
    "Mo et al. 2021": Claims(
        "V-information and sensitivity localise “private latent information in a layer-wise "
        "manner”: the first dense layer leaks most, and both measures follow the attack's success.",
        "V-information follows the attack's success.",
        "sensitivity does not follow the attack's success; another layer leaks most, also on "
        "CIFAR-10; longer training does not reach the printed accuracy. All three are undecided "
        "(see the notes).",
        "learning rate, initialisation, disjoint people, equal label mix.",
        "Which test split and how many rounds were used? Was the correction ψ for layer sizes "
        "applied?",
    ),
    "Mueller et al. 2022": Claims(
        "PLIS “enables the identification of sensitive attributes and of subjects at high risk of "
        "data reconstruction”; with differential privacy, it is “essentially randomly distributed "
        "over the image space”.",
        "informative features have a larger PLIS than others, and records of high PLIS are "
        "reconstructed better by SSIM and HaarPSI (among normal X-rays by HaarPSI only).",
        "by squared error, records of high PLIS are reconstructed slightly better within a class, "
        "but not over all records; loss and gradient norm predict SSIM as well as PLIS does; PLIS "
        "with differential privacy is nearly as smooth as without.",
        "our own networks; PneumoniaMNIST, where the paper may have used ChestMNIST.",
        "Which network, attack options, data set and records were used?",
    ),
}
