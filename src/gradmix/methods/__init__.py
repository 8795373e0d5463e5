"""Methods of class-incremental learning, one file each."""

from __future__ import annotations

from dataclasses import dataclass

from gradmix.errors import UnknownNameError
from gradmix.methods.base import Method, Options, Stage
from gradmix.methods.closed_form import LinearDiscriminant, NearestClassMean, RidgeRegression
from gradmix.methods.der import DER, DERPlusPlus
from gradmix.methods.er import ER
from gradmix.methods.finetune import FineTuning
from gradmix.methods.foster import FOSTER
from gradmix.methods.gss import GSS, GSSStream
from gradmix.methods.icarl import ICaRL
from gradmix.methods.joint import Joint
from gradmix.methods.memo import MEMO
from gradmix.methods.mir import MIR

__all__ = [
    "DER",
    "ER",
    "FOSTER",
    "GSS",
    "MEMO",
    "METHODS",
    "MIR",
    "DERPlusPlus",
    "FineTuning",
    "GSSStream",
    "ICaRL",
    "Joint",
    "LinearDiscriminant",
    "Method",
    "MethodInfo",
    "NearestClassMean",
    "Options",
    "RidgeRegression",
    "Stage",
    "find_method",
]


@dataclass(frozen=True)
class MethodInfo:
    """What is known about a method."""

    summary: str
    source: str
    build: type[Method]


METHODS: dict[str, MethodInfo] = {
    "er": MethodInfo("experience replay", "Chaudhry et al., 2019", ER),
    "mir": MethodInfo("replays what a step would harm most", "Aljundi et al., NeurIPS 2019", MIR),
    "gss": MethodInfo(
        "stores exemplars with diverse gradients", "Aljundi et al., NeurIPS 2019", GSS
    ),
    "gss-stream": MethodInfo(
        "the same, chosen during training", "Aljundi et al., NeurIPS 2019", GSSStream
    ),
    "der": MethodInfo("replays old outputs", "Buzzega et al., NeurIPS 2020", DER),
    "der++": MethodInfo("old outputs and labels", "Buzzega et al., NeurIPS 2020", DERPlusPlus),
    "foster": MethodInfo("boosting and compression", "Wang et al., ECCV 2022", FOSTER),
    "memo": MethodInfo("a special block per task", "Zhou et al., ICLR 2023", MEMO),
    "icarl": MethodInfo("herding and nearest class mean", "Rebuffi et al., CVPR 2017", ICaRL),
    "finetune": MethodInfo("no replay: the lower bound", "folklore", FineTuning),
    "ridge": MethodInfo("ridge regression on features", "RanPAC, NeurIPS 2023", RidgeRegression),
    "ncm": MethodInfo("nearest class mean of features", "Rebuffi et al., 2017", NearestClassMean),
    "slda": MethodInfo("linear discriminants", "Hayes and Kanan, 2020", LinearDiscriminant),
    "joint": MethodInfo("all data at once: the upper bound", "folklore", Joint),
}


def find_method(name: str) -> type[Method]:
    """Return the class of a method by its name."""
    if name not in METHODS:
        raise UnknownNameError("method", name, METHODS)
    return METHODS[name].build
