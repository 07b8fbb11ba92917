"""SNM: sparse non-negative matrix language models.

    import snm

    model = snm.train("text.txt", "my.model")
    model = snm.load("my.model")
    model.score("a sentence"), model.next_words("some words"), model.explain("a sentence")

Errors are in `snm.errors`; all are `SnmError`s.

Names are imported when they are first used, so that `import snm` costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from snm.version import __version__

if TYPE_CHECKING:
    from snm import decoding as decoding
    from snm import errors as errors
    from snm import kenlm as kenlm
    from snm.adapting import adapt as adapt
    from snm.adjustment.metafeatures import MetafeatureSet as MetafeatureSet
    from snm.adjustment.registered import metafeature as metafeature
    from snm.adjustment.settings import TrainingSettings as TrainingSettings
    from snm.baselines.backoff.arpa import import_arpa as import_arpa
    from snm.baselines.backoff.model import BackoffModel as BackoffModel
    from snm.baselines.neural.model import NeuralModel as NeuralModel
    from snm.baselines.neural.settings import NetworkSettings as NetworkSettings
    from snm.counted import CountedText as CountedText
    from snm.counted import merge_counts as merge_counts
    from snm.counted import write_vocabulary as write_vocabulary
    from snm.errors import SnmError as SnmError
    from snm.evaluation import SumReport as SumReport
    from snm.evaluation import verify as verify
    from snm.exporting import export_arpa as export_arpa
    from snm.features.families import feature_family as feature_family
    from snm.features.specification import FeatureSpec as FeatureSpec
    from snm.filtering import FilterReport as FilterReport
    from snm.filtering import TextPerplexity as TextPerplexity
    from snm.filtering import filter_text as filter_text
    from snm.hybrids import mix_gated as mix_gated
    from snm.integrations.hub import from_pretrained as from_pretrained
    from snm.integrations.hub import push_to_hub as push_to_hub
    from snm.loading import load as load
    from snm.mixing import mix as mix
    from snm.model import Explanation as Explanation
    from snm.model import LanguageModel as LanguageModel
    from snm.model import PerplexityReport as PerplexityReport
    from snm.model import StatefulModel as StatefulModel
    from snm.pipeline import count_text as count_text
    from snm.pipeline import train as train
    from snm.planning.plan import Plan as Plan
    from snm.planning.plan import plan as plan
    from snm.planning.tuning import Tuning as Tuning
    from snm.planning.tuning import tune as tune
    from snm.pruning.models import prune as prune
    from snm.reporting.report import Comparison as Comparison
    from snm.reporting.report import Report as Report
    from snm.reporting.report import compare as compare
    from snm.reporting.report import report as report
    from snm.scoring.hybrid import HybridModel as HybridModel
    from snm.scoring.mixture import MixtureModel as MixtureModel
    from snm.scoring.model import SnmModel as SnmModel
    from snm.scoring.sources import SourcesModel as SourcesModel
    from snm.settings import Settings as Settings
    from snm.settings import paper_settings as paper_settings
    from snm.text.vocabulary import Vocabulary as Vocabulary

_HOME = {
    "BackoffModel": "baselines.backoff.model",
    "Comparison": "reporting.report",
    "CountedText": "counted",
    "Explanation": "model",
    "FilterReport": "filtering",
    "FeatureSpec": "features.specification",
    "LanguageModel": "model",
    "MetafeatureSet": "adjustment.metafeatures",
    "MixtureModel": "scoring.mixture",
    "NetworkSettings": "baselines.neural.settings",
    "NeuralModel": "baselines.neural.model",
    "PerplexityReport": "model",
    "Plan": "planning.plan",
    "Report": "reporting.report",
    "Settings": "settings",
    "SnmError": "errors",
    "SnmModel": "scoring.model",
    "SourcesModel": "scoring.sources",
    "HybridModel": "scoring.hybrid",
    "mix_gated": "hybrids",
    "StatefulModel": "model",
    "SumReport": "evaluation",
    "TextPerplexity": "filtering",
    "TrainingSettings": "adjustment.settings",
    "Tuning": "planning.tuning",
    "Vocabulary": "text.vocabulary",
    "adapt": "adapting",
    "compare": "reporting.report",
    "count_text": "pipeline",
    "export_arpa": "exporting",
    "filter_text": "filtering",
    "feature_family": "features.families",
    "from_pretrained": "integrations.hub",
    "import_arpa": "baselines.backoff.arpa",
    "load": "loading",
    "merge_counts": "counted",
    "metafeature": "adjustment.registered",
    "mix": "mixing",
    "paper_settings": "settings",
    "plan": "planning.plan",
    "prune": "pruning.models",
    "push_to_hub": "integrations.hub",
    "report": "reporting.report",
    "train": "pipeline",
    "tune": "planning.tuning",
    "verify": "evaluation",
    "write_vocabulary": "counted",
}
__all__ = [*_HOME, "__version__", "decoding", "errors", "kenlm"]


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    if name in ("decoding", "errors", "kenlm"):
        return import_module(f"snm.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'snm' has no attribute {name!r}")
    return getattr(import_module(f"snm.{_HOME[name]}"), name)
