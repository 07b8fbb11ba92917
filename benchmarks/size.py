"""Bytes an n-gram of a 5-gram model, beside KenLM's trie with 8-bit quantisation, and the cost of quantising.

python benchmarks/size.py CORPUS [--kenlm DIR] [--work DIR] [--json FILE]
"""

import re

from common import Bench, compared

import snm
from snm.text.encoding import encode_files


def main() -> None:
    bench = Bench(__doc__)
    trie = bench.kenlm("trie", "-q", "8", "-b", "8", "trie")
    with open(bench.work / "kenlm.arpa", encoding="utf-8") as arpa:
        ngrams = sum(int(n) for n in re.findall(r"ngram \d+=(\d+)", "".join(next(arpa) for _ in range(8))))
    model = snm.load(bench.model("snm5"))
    size = sum(path.stat().st_size for path in model.path.rglob("*") if path.is_file())
    ours, theirs = size / model.manifest["links"], trie.stat().st_size / ngrams
    rows = [compared("size of snm5", ours, theirs, "<= 1", "bytes an n-gram", ours / theirs)]
    bench.train("snm5", "--weight-bits", "16", name="snm5-16")
    exact = snm.load(bench.work / "snm5-16.model")
    text = encode_files(bench.text("test"), model.vocabulary)
    found, unquantised = model.perplexity(text, threads=2).ppl, exact.perplexity(text, threads=2).ppl
    rows.append(
        compared("perplexity, 8 bits beside 16", found, unquantised, "<= 1.002", "perplexity", found / unquantised)
    )
    bench.report("size", rows)


if __name__ == "__main__":
    main()
