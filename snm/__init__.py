"""SNM: sparse non-negative matrix language models.

    import snm

    model = snm.train("text.txt", "my.model")
    model = snm.load("my.model")
    model.score("a sentence"), model.next_words("some words"), model.explain("a sentence")

Names are imported when they are first used, so that `import snm` costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from snm.version import __version__

if TYPE_CHECKING:
    from snm.adjustment.metafeatures import MetafeatureSet as MetafeatureSet
    from snm.adjustment.settings import TrainingSettings as TrainingSettings
    from snm.errors import SnmError as SnmError
    from snm.features.families import feature_family as feature_family
    from snm.features.specification import FeatureSpec as FeatureSpec
    from snm.loading import load as load
    from snm.mixing import mix as mix
    from snm.model import LanguageModel as LanguageModel
    from snm.model import PerplexityReport as PerplexityReport
    from snm.pipeline import train as train
    from snm.scoring.model import SnmModel as SnmModel
    from snm.settings import Settings as Settings
    from snm.settings import paper_settings as paper_settings

_HOME = {
    "FeatureSpec": "features.specification",
    "LanguageModel": "model",
    "MetafeatureSet": "adjustment.metafeatures",
    "PerplexityReport": "model",
    "Settings": "settings",
    "SnmError": "errors",
    "SnmModel": "scoring.model",
    "TrainingSettings": "adjustment.settings",
    "feature_family": "features.families",
    "load": "loading",
    "mix": "mixing",
    "paper_settings": "settings",
    "train": "pipeline",
}
__all__ = [*_HOME, "__version__"]


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'snm' has no attribute {name!r}")
    return getattr(import_module(f"snm.{_HOME[name]}"), name)
