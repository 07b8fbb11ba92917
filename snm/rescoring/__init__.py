"""Rescoring: hypotheses of a recogniser, weighed anew with a language model. `snm rescore` on the command line."""

from snm.rescoring.lattices import Arc, Lattice, best_path, read_lattices
from snm.rescoring.nbest import Hypothesis, NBest, read_nbest, write_nbest
from snm.rescoring.rescore import Report, rescore, rescore_file
from snm.rescoring.weights import Weights, errors_of, tune_weights

__all__ = [
    "Arc", "Hypothesis", "Lattice", "NBest", "Report", "Weights", "best_path", "errors_of", "read_lattices",
    "read_nbest", "rescore", "rescore_file", "tune_weights", "write_nbest",
]  # fmt: skip
