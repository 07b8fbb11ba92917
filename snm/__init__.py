"""SNM: sparse non-negative matrix language models.

    import snm

    model = snm.train("text.txt", "my.model")
    model = snm.load("my.model")
    model.score("a sentence"), model.next_words("some words"), model.explain("a sentence")

Names are imported when they are first used, so that `import snm` costs nothing.
"""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from snm.errors import SnmError as SnmError
    from snm.evaluation import PerplexityReport as PerplexityReport
    from snm.features import FeatureSpec as FeatureSpec
    from snm.features import feature_family as feature_family
    from snm.metafeatures import MetafeatureSet as MetafeatureSet
    from snm.mixing import mix as mix
    from snm.model import LanguageModel as LanguageModel
    from snm.model import SnmModel as SnmModel
    from snm.model import load as load
    from snm.pipeline import Settings as Settings
    from snm.pipeline import train as train
    from snm.training import TrainingSettings as TrainingSettings

_HOME = {
    "FeatureSpec": "features",
    "LanguageModel": "model",
    "MetafeatureSet": "metafeatures",
    "PerplexityReport": "evaluation",
    "Settings": "pipeline",
    "SnmError": "errors",
    "SnmModel": "model",
    "TrainingSettings": "training",
    "feature_family": "features",
    "load": "model",
    "mix": "mixing",
    "train": "pipeline",
}
__all__ = [*_HOME, "__version__"]


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'snm' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"snm.{_HOME[name]}"), name)
