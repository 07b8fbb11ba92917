"""The options of `snm train`: what they are, which go together, and the settings that they make."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from snm.terminal import Number, Size, chosen_threads, threads_option

if TYPE_CHECKING:
    from snm.metafeatures import MetafeatureSet
    from snm.pipeline import Settings

Command = Callable[..., Any]

# fmt: off
OPTIONS = [
    click.option("--model", type=click.Choice(["snm", "kn", "katz", "sbo", "hsme", "rnn"]), default="snm",
        show_default=True,
        help="Sparse non-negative matrix, interpolated Kneser-Ney, Katz, stupid backoff, maximum entropy with a "
        "hierarchical softmax, or a recurrent network."),
    click.option("--order", type=Number(1, 32),
        help="n-grams up to this order.  [default: 5 for kn, katz, sbo and hsme, 9 for rnn]"),
    click.option("--hidden", type=Number(1), default=256, show_default=True,
        help="Hidden units of a recurrent network."),
    click.option("--cell", type=click.Choice(["rnn", "lstm"]), default="rnn", show_default=True,
        help="Of a recurrent network."),
    click.option("--softmax", type=click.Choice(["tree", "adaptive"]),
        help="Output of a recurrent network: a tree of binary decisions, jointly with n-gram features, or an "
        "adaptive softmax.  [default: tree for rnn, adaptive for lstm]"),
    click.option("--dropout", type=float,
        help="Of a recurrent network's states.  [default: 0.1; below 10 M tokens 0.3 for rnn, 0.5 for "
        "lstm]"),
    click.option("--checkpoint", type=float, default=10.0, show_default=True,
        help="Minutes between checkpoints of a neural model, in OUTPUT.checkpoint; the same command goes on from "
        "there. 0 for none."),
    click.option("--discounts", type=click.Choice(["modified", "single"]), default="modified", show_default=True,
        help="Kneser-Ney's: three an order, or the original single one."),
    click.option("--preset",
        help="Features by name: small, medium, large; the paper's snm2 … snm10, snm5-skip, snm5-skip-only, "
        "snm10-skip.  [default: small]"),
    click.option("--features",
        help="Features by specification, such as 'ngram(0..4) + skip(r=1, s=1..3, words=1..3)'."),
    click.option(
        "--dev",
        multiple=True,
        help="Held-out text, for SNM's gate and to stop training in time.  [default: a slice of TEXT]",
    ),
    click.option(
        "--gate",
        type=Number(0),
        default=64,
        show_default=True,
        help="Hidden units of the gate, which weighs the features of a place against each other; 0 for none.",
    ),
    click.option("--prune", type=Number(1), default=2, show_default=True,
        help="Leave out features seen less often than this, n-grams of up to five words aside."),
    click.option("--weight-bits", type=click.Choice(["8", "16"]), default="8", show_default=True,
        help="Bits of a weight in the model file; 8 cost some hundredths of a percent."),
    click.option("--classes", type=Number(4, 65536), default=256, show_default=True,
        help="Word classes to learn, where the features use them."),
    click.option("--min-count", type=Number(1), default=3, show_default=True,
        help="Words seen less often are <UNK>."),
    click.option("--max-words", type=Number(1), help="Keep the most frequent words only."),
    click.option("--vocab", help="File with the vocabulary, one word a line, instead of the text's own."),
    click.option("--closed", is_flag=True, help="Closed vocabulary: <UNK> is never predicted."),
    click.option("--document", is_flag=True,
        help="TEXT holds documents, a blank line between two: features reach across sentences."),
    click.option("--loss", type=click.Choice(["leave-one-out", "poisson", "multinomial"]), default="leave-one-out",
        show_default=True,
        help="Poisson with or without leave-one-out, or multinomial on held-out text."),
    click.option("--optimiser", type=click.Choice(["adagrad", "sgd"]), default="adagrad", show_default=True),
    click.option("--rate", type=float,
        help="Learning rate.  [default: 0.1 for adagrad, 0.002 for sgd; 0.3 for hsme, 0.001 for rnn, 0.002 for "
        "lstm]"),
    click.option("--accumulator", type=float, default=1.0, show_default=True,
        help="What AdaGrad's sums of squares start at."),
    click.option("--batch", type=Number(1),
        help="Events a step of the multinomial loss, or of a neural model.  [default: 4096; for a neural model a "
        "1500th of the text, 256 to 32768]"),
    click.option("--passes", type=Number(0),
        help="Most passes over the events; 0 leaves what training begins at: relative frequencies, a network's "
        "random weights.  [default: 1; 2 for hsme, 6 for rnn]"),
    click.option("--events", type=Number(1),
        help="Learn the adjustment from about this many events, drawn by sentence.  "
        "[default: on a CPU what has 2^29 features and fits into --memory, on a GPU what fits there]"),
    click.option(
        "--slots",
        type=Number(1),
        help="Slots of the table of metafeature weights, or of a neural model's n-gram features.  "
        "[default: a power of two above half the links, or what fits into --memory; above 8 a token for hsme, 16 for "
        "rnn]",
    ),
    click.option("--metafeatures", default="lean", show_default=True,
        help="Conjunctions such as 'type+link-count, target'; 'all' are the paper's, 'all, -feature' ablates one "
        "of feature, type, feature-count, target, link-count."),
    click.option("--feature-buckets", type=click.Choice(["single", "double"]), default="single", show_default=True,
        help="Buckets of a feature count: its log2, or the two nearest, weighted."),
    click.option("--link-buckets", type=click.Choice(["single", "double", "half"]), default="half", show_default=True,
        help="Buckets of a link count: its log2, the two nearest, or half octaves."),
    click.option("--start", type=float,
        help="What every adjustment begins at.  [default: where predictions have the right mass]"),
    click.option("--merge/--no-merge", default=True, show_default=True,
        help="One look-up for metafeatures that coincide."),
    click.option(
        "--memory",
        type=Size(),
        default="4G",
        show_default=True,
        help="Memory of its own that the process takes at most to train an SNM by one pass; files that it maps come on "
        "top. With less, counting takes longer, and the adjustment has fewer events and weights.",
    ),
    click.option("--engine", type=click.Choice(["auto", "cpu", "gpu"]), default="auto", show_default=True,
        help="Where the work is done: the threads of this machine, or a GPU (needs PyTorch). auto is a GPU where "
        "there is one, for neural models and texts of a million tokens."),
    click.option("--partitions", type=Number(1), help="Partitions of the counts.  [default: what the memory needs]"),
    threads_option,
    click.option("--seed", type=Number(0), default=1, show_default=True,
        help="Seed of all random choices. "
        "One thread gives the same model, bit for bit; several differ a little."),
]
# fmt: on


def training_options(command: Command) -> Command:
    """A command with all of them."""
    for option in reversed(OPTIONS):
        command = option(command)
    return command


PLAIN_SETTINGS = (
    "model", "order", "discounts", "min_count", "max_words", "closed", "document", "memory", "partitions", "seed",
    "gate", "prune", "classes", "engine",
)  # fmt: skip


SNM_OPTIONS = (
    "preset", "features", "document", "gate", "prune", "weight_bits", "classes", "loss", "optimiser", "accumulator",
    "events", "metafeatures", "feature_buckets", "link_buckets", "merge", "start",
)  # fmt: skip
TRAINING_OPTIONS = ("dev", "rate", "batch", "passes", "slots")
NEURAL_OPTIONS = ("checkpoint",)
RNN_OPTIONS = ("hidden", "cell", "softmax", "dropout")
COUNTING_OPTIONS = ("memory", "partitions")


def _idle_options(options: dict[str, Any]) -> set[str]:
    """Those that would do nothing with this model."""
    model, neural = options["model"], options["model"] in ("hsme", "rnn")
    idle = set() if model == "snm" else set(SNM_OPTIONS)
    idle |= set() if model == "snm" or neural else set(TRAINING_OPTIONS)
    idle |= set(COUNTING_OPTIONS) if neural else set(NEURAL_OPTIONS)
    idle |= set() if model == "rnn" else set(RNN_OPTIONS)
    idle |= set() if model == "kn" else {"discounts"}
    output = options["softmax"] or ("adaptive" if options["cell"] == "lstm" else "tree")
    return idle | ({"order", "slots"} if model == "rnn" and output == "adaptive" else set())


def _refuse_idle_options(options: dict[str, Any]) -> None:
    """An option that would do nothing is a misunderstanding."""
    context = click.get_current_context()
    given = {
        name for name in context.params
        if context.get_parameter_source(name) == click.core.ParameterSource.COMMANDLINE
    }  # fmt: skip
    idle = given & _idle_options(options)
    idle |= given & {"order"} if given & {"preset", "features"} else set()
    idle |= given & {"min_count"} if "vocab" in given else set()
    if idle:
        names = ", ".join("--" + name.replace("_", "-") for name in sorted(idle))
        raise click.UsageError(
            f"{names} would do nothing here, with --model {options['model']} and the other options; leave it out"
        )


def settings_of(options: dict[str, Any]) -> Settings:
    """What `snm.pipeline.train` is to be asked for."""
    from snm.features import PRESETS
    from snm.metafeatures import MetafeatureSet
    from snm.pipeline import Settings

    _refuse_idle_options(options)
    preset, features = options["preset"], options["features"]
    if preset is not None and features is not None:
        raise click.UsageError("--preset and --features exclude each other; give one of them")
    if preset is not None and preset not in PRESETS:
        raise click.BadParameter(f"no preset {preset!r}; expected one of {', '.join(PRESETS)}", param_hint="--preset")
    metafeatures = MetafeatureSet.parse(
        options["metafeatures"], options["feature_buckets"], options["link_buckets"], options["merge"]
    )
    return Settings(
        features=preset if features is None else features,
        vocabulary=None if options["vocab"] is None else Path(options["vocab"]),
        threads=chosen_threads(options["threads"]),
        weight_bits=int(options["weight_bits"]),
        **_training_settings(options, metafeatures),
        **{name: options[name] for name in PLAIN_SETTINGS},
    )


def _training_settings(options: dict[str, Any], metafeatures: MetafeatureSet) -> dict[str, Any]:
    from snm.baselines.neural import NetworkSettings
    from snm.training import TrainingSettings

    if options["model"] in ("hsme", "rnn"):
        given = ("cell", "hidden", "softmax", "passes", "rate", "batch", "dropout", "slots")
        seconds = options["checkpoint"] * 60
        return {"network": NetworkSettings(checkpoint=seconds, **{name: options[name] for name in given})}
    names = ("loss", "optimiser", "rate", "accumulator", "batch", "passes", "events", "slots", "start")
    chosen = {name: options[name] for name in names if options[name] is not None}
    return {"training": TrainingSettings(metafeatures=metafeatures, **chosen)}
