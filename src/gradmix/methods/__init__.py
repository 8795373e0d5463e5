"""Methods of class-incremental learning, one file each."""

from __future__ import annotations

from dataclasses import dataclass

from gradmix.errors import UnknownNameError
from gradmix.methods.a_gem import AGEM
from gradmix.methods.aser import ASER
from gradmix.methods.base import Method
from gradmix.methods.bic import BiC
from gradmix.methods.bounds import FineTuning, Joint
from gradmix.methods.closed_form import LinearDiscriminant, NearestClassMean, RidgeRegression
from gradmix.methods.components import Options, Stage
from gradmix.methods.der import DER, DERPlusPlus
from gradmix.methods.der_expandable import DERExpandable
from gradmix.methods.drc import DRC
from gradmix.methods.dytox import DyTox
from gradmix.methods.er import ER
from gradmix.methods.er_ace import ERACE
from gradmix.methods.er_ridge import ERRidge
from gradmix.methods.ewc import EWC
from gradmix.methods.foster import FOSTER
from gradmix.methods.gdumb import GDumb
from gradmix.methods.gss import GSS, GSSStream
from gradmix.methods.icarl import ICaRL
from gradmix.methods.lwf import LwF
from gradmix.methods.memo import MEMO
from gradmix.methods.mir import MIR
from gradmix.methods.scr import SCR
from gradmix.methods.tagfex import TagFex
from gradmix.methods.wa import WA

__all__ = ["ER", "METHODS", "Method", "MethodInfo", "Options", "Stage", "find_method"]


@dataclass(frozen=True)
class MethodInfo:
    """What is known about a method."""

    summary: str
    source: str
    build: type[Method]


METHODS: dict[str, MethodInfo] = {
    "er": MethodInfo("experience replay", "Chaudhry et al., 2019", ER),
    "er-ace": MethodInfo(
        "new samples do not lower the scores of old classes", "Caccia et al., ICLR 2022", ERACE
    ),
    "er-ridge": MethodInfo("replay combined with a ridge regression", "this project", ERRidge),
    "mir": MethodInfo("replays what a step would harm most", "Aljundi et al., NeurIPS 2019", MIR),
    "aser": MethodInfo("replays by adversarial Shapley values", "Shim et al., AAAI 2021", ASER),
    "gss": MethodInfo(
        "stores exemplars with diverse gradients", "Aljundi et al., NeurIPS 2019", GSS
    ),
    "gss-stream": MethodInfo(
        "the same, chosen during training", "Aljundi et al., NeurIPS 2019", GSSStream
    ),
    "der": MethodInfo("replays old outputs", "Buzzega et al., NeurIPS 2020", DER),
    "der++": MethodInfo("old outputs and labels", "Buzzega et al., NeurIPS 2020", DERPlusPlus),
    "foster": MethodInfo("boosting and compression", "Wang et al., ECCV 2022", FOSTER),
    "der-expandable": MethodInfo("a network per task", "Yan et al., CVPR 2021", DERExpandable),
    "memo": MethodInfo("a special block per task", "Zhou et al., ICLR 2023", MEMO),
    "tagfex": MethodInfo(
        "networks for each task, and one for all tasks", "Zheng et al., CVPR 2025", TagFex
    ),
    "dytox": MethodInfo("a token and a head per task", "Douillard et al., CVPR 2022", DyTox),
    "drc": MethodInfo("two light branches, merged and fused", "Chen and Chang, ICCV 2023", DRC),
    "icarl": MethodInfo("herding and nearest class mean", "Rebuffi et al., CVPR 2017", ICaRL),
    "scr": MethodInfo("contrastive loss and nearest class mean", "Mai et al., CVPRW 2021", SCR),
    "bic": MethodInfo("corrects the scores of new classes", "Wu et al., CVPR 2019", BiC),
    "wa": MethodInfo("aligns the weights of new classes", "Zhao et al., CVPR 2020", WA),
    "a-gem": MethodInfo(
        "no step opposes the memory's gradient", "Chaudhry et al., ICLR 2019", AGEM
    ),
    "gdumb": MethodInfo("a new network on the memory alone", "Prabhu et al., ECCV 2020", GDumb),
    "lwf": MethodInfo("no replay: keeps old outputs", "Li and Hoiem, ECCV 2016", LwF),
    "ewc": MethodInfo("no replay: keeps weights that mattered", "Schwarz et al., ICML 2018", EWC),
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
