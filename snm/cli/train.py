"""The command train: its options in groups, which of them go together, and the settings that they make."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from snm.arguments import MAX_THREADS, file_path, shown
from snm.cli.bars import Bars
from snm.cli.options import (
    ON_ERROR,
    TOKENIZER,
    Command,
    GroupedCommand,
    GroupedOption,
    Number,
    Size,
    chosen_threads,
    import_option,
    json_option,
    print_json,
)
from snm.cli.terminal import notify
from snm.cli.warmup import compiling

if TYPE_CHECKING:
    from snm.baselines.neural.settings import NetworkSettings
    from snm.counted import CountedText
    from snm.progress import Notify
    from snm.settings import Settings

SUMMARY = ("features", "rows", "links", "network", "parameters", "text", "training", "estimation", "tuning")

option = partial(click.option, cls=GroupedOption)
# fmt: off
OPTIONS = [
    option("--model", type=click.Choice(["snm", "kn", "katz", "sbo", "hsme", "rnn", "hybrid"]), default="snm",
        show_default=True,
        help="Sparse non-negative matrix, interpolated Kneser-Ney, Katz, stupid backoff, maximum entropy with a "
        "hierarchical softmax, a recurrent network, or a hybrid: an SNM and a network, weighed by context."),
    option("--preset",
        help="Features by name: small, medium, large; the paper's snm2 … snm10, snm5-skip, snm5-skip-only, "
        "snm10-skip. Or a hybrid: hybrid-small, hybrid, hybrid-large, with networks of 256, 512, 1,024 units.  "
        "[default: small; with --paper snm5]"),
    option("--features",
        help="Features by specification, such as 'ngram(0..4) + skip(r=1, s=1..3, words=1..3)'."),
    option("--order", type=Number(1, 32),
        help="n-grams up to this order.  [default: 5 for kn, katz, sbo and hsme, 9 for rnn]"),
    option("--paper", is_flag=True,
        help="Train an SNM as the paper does: all 127 conjunctions of metafeatures, both counts in two buckets, every "
        "event; no gate, pruning or classes. AdaGrad, unless --optimiser sgd. Other options given beside it are kept, "
        "and the departures from the paper are listed."),
    option("--dev", multiple=True,
        help="Held-out text, for SNM's gate and to stop training in time.  [default: a slice of TEXT]"),
    option("--min-count", type=Number(1), default=3, show_default=True,
        help="Words seen less often are <UNK>."),
    option("--vocab", help="File with the vocabulary, one word a line, instead of the text's own."),
    option("--tokenizer", **TOKENIZER),
    option("--on-error", **ON_ERROR),
    option("--memory", type=Size(), default="4G", show_default=True,
        help="Memory that training an SNM by one pass may use, mapped files not counted. With less, counting takes "
        "longer, and the adjustment is learned from fewer events with fewer weights."),
    option("--threads", type=Number(1, MAX_THREADS), help="Threads.  [default: all cores]"),
    option("--engine", type=click.Choice(["auto", "cpu", "gpu", "ray", "tasks"]), default="auto",
        show_default=True,
        help="Where to train: on the threads of this machine, a GPU (needs PyTorch), a Ray cluster, or as tasks that "
        "other programs run (docs/cluster.md). auto takes a GPU where there is one, for neural models and texts of a "
        "million tokens."),
    option("--seed", type=Number(0), default=1, show_default=True,
        help="Seed of all random choices. One thread gives the same model bit for bit; several differ a little."),

    option("--max-words", group="Vocabulary", type=Number(1), help="Keep only the most frequent words."),
    option("--closed", group="Vocabulary", is_flag=True, help="Closed vocabulary: <UNK> is never predicted."),
    option("--document", group="Vocabulary", is_flag=True,
        help="TEXT has documents, separated by blank lines: features reach across sentences."),
    option("--fields", group="Vocabulary", metavar="NAMES",
        help="Lines may begin with these fields, such as 'speaker=ann topic=law'; NAMES are speaker,topic. Their "
        "values become features, and are never predicted. All commands take such lines then."),

    option("--prune", group="Features", type=Number(1, 1 << 31), default=2, show_default=True,
        help="Leave out features seen less often than this, except n-grams of up to five words."),
    option("--classes", group="Features", type=Number(4, 65536),
        help="Number of word classes to learn, where the features use them.  [default: 256; 64 from a text of up to "
        "2 M tokens]"),

    option("--folds", group="Estimation", type=Number(0),
        help="Learn the gate from so many parts of the text, each under a model of the others, which takes as many "
        "trainings more; 0 for a slice that is held out.  [default: 4 up to 2 M tokens without --dev, above 0]"),
    option("--gate", group="Estimation", type=Number(0), default=64, show_default=True,
        help="Hidden units of the gate, which weighs the features of an event against each other; 0 for none."),
    option("--discounts", group="Estimation", type=click.Choice(["modified", "single"]), default="modified",
        show_default=True, help="Kneser-Ney's: three for each order, or the original single one."),
    option("--loss", group="Estimation", type=click.Choice(["leave-one-out", "poisson", "multinomial"]),
        default="leave-one-out", show_default=True,
        help="Poisson with or without leave-one-out, or multinomial on held-out text."),
    option("--optimiser", group="Estimation", type=click.Choice(["adagrad", "sgd"]), default="adagrad",
        show_default=True),
    option("--rate", group="Estimation", type=float,
        help="Learning rate.  [default: 0.1 for adagrad, with --paper 0.02; 0.002 for sgd; 0.3 for hsme, 0.001 for "
        "rnn, 0.002 for lstm]"),
    option("--accumulator", group="Estimation", type=float, default=1.0, show_default=True,
        help="Initial value of AdaGrad's sums of squares."),
    option("--batch", group="Estimation", type=Number(1),
        help="Events a step of the multinomial loss, or of a neural model.  [default: 4096; for a neural model a "
        "1500th of the text, 256 to 32768]"),
    option("--passes", group="Estimation", type=Number(0),
        help="Most passes over the events; 0 keeps the initial values: relative frequencies, or a network's random "
        "weights.  [default: 1; 2 for hsme, 6 for rnn]"),
    option("--events", group="Estimation", type=Number(1),
        help="Learn the adjustment from about this many events, drawn by sentence.  "
        "[default: all; on a GPU those that fit into its memory]"),
    option("--slots", group="Estimation", type=Number(1),
        help="Slots of the table of metafeature weights, or of a neural model's n-gram features.  "
        "[default: a power of two above half the links, or what fits into --memory; above 8 a token for hsme, 16 for "
        "rnn]"),
    option("--metafeatures", group="Estimation", default="lean", show_default=True,
        help="Conjunctions such as 'type+link-count, target'; 'all' are the paper's, 'all, -feature' removes one of "
        "feature, type, feature-count, target, link-count. Further ones are diversity, continuation, and your own "
        "(--import)."),
    option("--feature-buckets", group="Estimation", type=click.Choice(["single", "double"]), default="single",
        show_default=True, help="Buckets of a feature count: its log2, or the two nearest, weighted."),
    option("--link-buckets", group="Estimation", type=click.Choice(["single", "double", "half"]), default="half",
        show_default=True, help="Buckets of a link count: its log2, the two nearest, or half octaves."),
    option("--start", group="Estimation", type=float,
        help="Initial value of every adjustment.  [default: such that predictions sum to one; with --paper 0]"),
    option("--merge/--no-merge", group="Estimation", default=True, show_default=True,
        help="One look-up for metafeatures that coincide."),

    option("--hidden", group="Neural models", type=Number(1),
        help="Hidden units of a recurrent network.  [default: 256, or those of the preset]"),
    option("--cell", group="Neural models", type=click.Choice(["rnn", "lstm"]),
        help="Of a recurrent network.  [default: rnn; of a hybrid lstm]"),
    option("--softmax", group="Neural models", type=click.Choice(["tree", "adaptive", "classes"]),
        help="Output of a recurrent network: a tree of binary decisions, jointly with n-gram features; an "
        "adaptive softmax; or a softmax over word classes and the words of a class, the fastest on a CPU.  "
        "[default: tree for rnn, adaptive for lstm; in a hybrid classes]"),
    option("--dropout", group="Neural models", type=float,
        help="Of a recurrent network's states.  [default: 0.1; below 10 M tokens 0.3 for rnn, 0.5 for lstm]"),
    option("--checkpoint", group="Neural models", type=float, default=10.0, show_default=True,
        help="Minutes between checkpoints of a neural model, in OUTPUT.checkpoint; the same command resumes from "
        "there. 0 for none."),

    option("--weight-bits", group="Resources", type=click.Choice(["8", "16"]), default="8", show_default=True,
        help="Bits of a weight in the model file; 8 cost some hundredths of a percent of perplexity."),
    option("--size", group="Resources", type=Size(),
        help="Most bytes of the model folder, such as 200M: the links and features that bring least are pruned at the "
        "end, before the gate is learned."),
    option("--partitions", group="Resources", type=Number(1),
        help="Partitions of the counts.  [default: as many as the memory needs]"),
    option("--address", group="Resources",
        help="Of the Ray cluster, such as 10.0.0.1:6379.  [default: one on this machine, or RAY_ADDRESS]"),
    option("--work", group="Resources",
        help="Folder or URL that all machines of a cluster share, for temporary files; or the folder in which "
        "--resume keeps its own.  [default: beside OUTPUT]"),
    option("--resume", group="Resources", is_flag=True,
        help="Keep what is finished in OUTPUT.work, until the model is written. If the run is killed, the same "
        "command goes on from there. Takes more disk, and somewhat longer."),
]
# fmt: on


def training_options(command: Command) -> Command:
    """A command with all of them."""
    for decorate in reversed(OPTIONS):
        command = decorate(command)
    return command


@click.command(cls=GroupedCommand)
@click.argument("text", nargs=-1)
@click.option("-o", "--output", required=True, help="Folder or URL of the model to write.")
@click.option("--counts", help="Folder of snm count or snm merge, instead of TEXT: its text, vocabulary and features.")
@training_options
@click.option("--tune", type=float, is_flag=False, flag_value=300.0, metavar="[SECONDS]",
              help="First choose metafeatures, classes, pruning and the rate by held-out text: models of a sample "
              "are trained for about so many seconds. Other options that are given stay.  [default: 300]")  # fmt: skip
@click.option("--force", is_flag=True, help="Replace a model of that name.")
@click.option("--quiet", is_flag=True, help="Print nothing but errors.")
@import_option
@json_option
def train(
    text: tuple[str, ...], output: str, counts: str | None, tune: float | None, as_json: bool, quiet: bool,
    **options: Any,
) -> None:  # fmt: skip
    """Train a model on TEXT: files (plain, gz, bz2, xz, zst), folders, globs, URLs, or - for standard input.

    One sentence a line, words separated by white space. NAME=TEXT for each of several sources, with --dev, makes a
    model that weighs them by context for the text of --dev.
    """
    from snm.counted import CountedText
    from snm.memory import Peak
    from snm.pipeline import train as run
    from snm.settings import departures_from_paper
    from snm.sources import named_sources

    if bool(text) == (counts is not None):
        raise click.UsageError("expected TEXT, or --counts in place of it")
    counted = None if counts is None else CountedText(counts)
    settings, say = settings_of(options, counted), notify(quiet, as_json)
    if options["paper"]:
        say(f"as the paper, except: {', '.join(departures_from_paper(settings))}")
    sources = named_sources(text)
    texts = tuple(sources.values()) if isinstance(sources, dict) else text
    _compile(texts, output, settings, options["force"], as_json, quiet)
    if tune is not None:
        settings = _tuned(texts, settings, tune, options, say, as_json, quiet)
    begun = time.perf_counter()
    with Peak() as peak:
        model = run(
            sources or None, output, settings, counts=counted, dev=options["dev"], force=options["force"],
            progress=Bars(as_json, quiet), notify=say,
        )  # fmt: skip
    m = model.manifest
    size = sum(entry["bytes"] for entry in m["files"].values())
    seconds = time.perf_counter() - begun
    if as_json:
        figures = {"model": output, "bytes": size, "seconds": seconds, "peak_bytes": peak.bytes}
        print_json({**figures, **{k: m[k] for k in m if k in SUMMARY}})
    else:
        memory = f", {peak.bytes / 1e9:.1f} GB of memory at the peak" if peak.bytes else ""
        say(f"wrote {output}: {size / 1e6:,.1f} MB in {seconds:.1f} s{memory}")


def _tuned(
    text: tuple[str, ...], settings: Settings, seconds: float, options: dict[str, Any], say: Notify, as_json: bool,
    quiet: bool,
) -> Settings:  # fmt: skip
    """The settings with those that were chosen by held-out text."""
    from snm.planning.tuning import TUNED, tune

    if not text or options["paper"]:
        raise click.UsageError(f"--tune would have no effect with {'--paper' if text else '--counts'}; leave out one")
    keep = sorted(_given_options() & set(TUNED))
    dev = list(options["dev"]) or None
    made = tune(list(text), settings, seconds=seconds, keep=keep, dev=dev, progress=Bars(as_json, quiet), notify=say)
    chosen = " ".join(f"--{name} {shown(value) if ' ' in str(value) else value}" for name, value in made.chosen.items())
    say(f"tuned on {made.sample_tokens:,} tokens{'' if made.complete else ', not everything was tried'}: {chosen}")
    return made.settings


def _compile(text: tuple[str, ...], output: str, settings: Settings, force: bool, as_json: bool, quiet: bool) -> None:
    """Compile the kernels of this training if the cache has none, after what would stop it at once."""
    from snm import warmup
    from snm.remote import is_url
    from snm.storage import ModelWriter
    from snm.text.files import find_files

    if not warmup.is_ready(settings):
        if text:
            find_files(text)
        if not is_url(output):
            ModelWriter(output, force)
        with compiling("train" if settings.model in ("snm", "hybrid") else "kn", as_json, quiet):
            warmup.compile_training(settings)


# ---------------------------------------------------------------------------------------------
# which options go together

SNM_OPTIONS = (
    "preset", "features", "fields", "paper", "document", "gate", "folds", "prune", "weight_bits", "classes", "loss",
    "optimiser", "accumulator", "events", "metafeatures", "feature_buckets", "link_buckets", "merge", "start",
)  # fmt: skip
TRAINING_OPTIONS = ("dev", "rate", "batch", "passes", "slots")
NEURAL_OPTIONS = ("checkpoint",)
RNN_OPTIONS = ("hidden", "cell", "softmax", "dropout")
COUNTING_OPTIONS = ("memory", "partitions")


def _unused_options(options: dict[str, Any]) -> set[str]:
    """Those that have no effect with this model."""
    model, neural = options["model"], options["model"] in ("hsme", "rnn", "hybrid")
    unused = set() if model in ("snm", "hybrid") else set(SNM_OPTIONS)
    unused |= {"paper", "document"} if model == "hybrid" else set()
    unused |= set() if model == "snm" or neural else set(TRAINING_OPTIONS)
    unused |= set(COUNTING_OPTIONS) if model in ("hsme", "rnn") else set()
    unused |= set() if neural else set(NEURAL_OPTIONS)
    unused |= set() if model in ("rnn", "hybrid") else set(RNN_OPTIONS)
    unused |= set() if model == "kn" else {"discounts"}
    unused |= {"resume", "size"} if neural else set()
    unused |= set() if options["engine"] in ("ray", "tasks") else {"address"}
    unused |= set() if options["engine"] in ("ray", "tasks") or options["resume"] else {"work"}
    unused |= {"address"} if options["engine"] == "tasks" else set()
    usual = "classes" if model == "hybrid" else "adaptive" if options["cell"] == "lstm" else "tree"
    tree = (options["softmax"] or usual) == "tree"
    unused |= {"slots"} if model in ("rnn", "hybrid") and not tree else set()
    return unused | ({"order"} if model == "rnn" and not tree else set())


def _given_options() -> set[str]:
    """The names of options that were given on the command line."""
    context = click.get_current_context()
    source = click.core.ParameterSource.COMMANDLINE
    return {name for name in context.params if context.get_parameter_source(name) == source}


def _refuse_unused(options: dict[str, Any], given: set[str]) -> None:
    unused = given & _unused_options(options)
    unused |= given & {"order"} if given & {"preset", "features"} else set()
    unused |= given & {"min_count"} if "vocab" in given else set()
    unused |= given & {"vocab", "min_count", "max_words"} if "counts" in given else set()
    unused |= given & {"classes"} if "paper" in given else set()
    unused |= given & {"min_count", "max_words", "vocab", "closed"} if options["tokenizer"] == "bytes" else set()
    if unused:
        names = ", ".join("--" + name.replace("_", "-") for name in sorted(unused))
        raise click.UsageError(
            f"{names} would have no effect here, with --model {options['model']} and the other options; leave it out"
        )


# ---------------------------------------------------------------------------------------------
# settings

PLAIN_SETTINGS = (
    "model", "order", "discounts", "min_count", "max_words", "tokenizer", "closed", "document", "on_error",
    "memory", "partitions", "seed", "gate", "folds", "prune", "classes", "engine", "address", "work", "resume",
    "size",
)  # fmt: skip
TRAINING_SETTINGS = ("loss", "optimiser", "rate", "accumulator", "batch", "passes", "events", "slots", "start")
METAFEATURE_SETTINGS = ("metafeatures", "feature_buckets", "link_buckets", "merge")
NETWORK_SETTINGS = ("cell", "hidden", "softmax", "passes", "rate", "batch", "dropout", "slots")


def settings_of(options: dict[str, Any], counted: CountedText | None = None) -> Settings:
    """The settings that the options ask for, and a counted text determines."""
    from snm.features.specification import PRESETS
    from snm.settings import HYBRIDS, Settings

    given = _given_options()
    options = _with_hybrid_preset(options, given)
    _refuse_unused(options, given)
    preset, features = options["preset"], options["features"]
    if counted is not None and options["model"] == "snm" and not given & {"preset", "features", "order"}:
        features = counted.spec.text
    if preset is not None and features is not None:
        raise click.UsageError("--preset and --features exclude each other; give one of them")
    if preset is not None and preset not in PRESETS:
        raise click.BadParameter(
            f"no preset {preset!r}; expected one of {', '.join((*PRESETS, *HYBRIDS))}", param_hint="--preset"
        )
    chosen = {
        "features": preset if features is None else features,
        "fields": options["fields"] or (),
        "vocab": None if options["vocab"] is None else file_path("vocab", options["vocab"]),
        "threads": chosen_threads(options["threads"]),
        "weight_bits": int(options["weight_bits"]),
        **{name: options[name] for name in PLAIN_SETTINGS},
    }
    if options["paper"]:
        return _paper_settings(chosen, options, given)
    if options["model"] in ("hsme", "rnn"):
        return Settings(network=_network_settings(options), **chosen)
    from snm.adjustment.metafeatures import MetafeatureSet
    from snm.adjustment.settings import TrainingSettings

    hybrid = options["model"] == "hybrid"
    names = [name for name in TRAINING_SETTINGS if not (hybrid and name in NETWORK_SETTINGS)]
    training = {name: options[name] for name in names if options[name] is not None}
    how = {name: options[name] for name in METAFEATURE_SETTINGS if name != "metafeatures"}
    metafeatures = MetafeatureSet.parse(options["metafeatures"], **how)
    if hybrid:
        chosen["network"] = _network_settings(options)
    return Settings(training=TrainingSettings(metafeatures=metafeatures, **training), **chosen)


def _with_hybrid_preset(options: dict[str, Any], given: set[str]) -> dict[str, Any]:
    """The options with those that the preset of a hybrid stands for."""
    from snm.settings import HYBRID, HYBRIDS

    preset = options["preset"]
    if preset not in HYBRIDS:
        return options
    if "model" in given and options["model"] != HYBRID:
        raise click.UsageError(f"--preset {preset} is a hybrid; leave out --model {options['model']}")
    features, hidden = HYBRIDS[preset]
    return {**options, "model": HYBRID, "preset": features, "hidden": options["hidden"] or hidden}


def _network_settings(options: dict[str, Any]) -> NetworkSettings:
    from snm.baselines.neural.settings import NetworkSettings

    network = {name: options[name] for name in NETWORK_SETTINGS if options[name] is not None}
    return NetworkSettings(checkpoint=options["checkpoint"] * 60, **network)


def _paper_settings(chosen: dict[str, Any], options: dict[str, Any], given: set[str]) -> Settings:
    """The paper's settings, with those options kept that were given beside --paper."""
    from snm.settings import paper_settings

    kept = {
        name: value for name, value in chosen.items()
        if name in given or name not in ("features", "order", "gate", "prune", "weight_bits")
    }  # fmt: skip
    if options["order"] is not None:
        kept["features"] = f"ngram(0..{options['order'] - 1})"
        del kept["order"]
    elif chosen["features"] is not None:
        kept["features"] = chosen["features"]
    training = {name: options[name] for name in TRAINING_SETTINGS if name in given and name != "optimiser"}
    metafeatures = {name: options[name] for name in METAFEATURE_SETTINGS if name in given}
    return paper_settings(training=training, optimiser=options["optimiser"], **metafeatures, **kept)
