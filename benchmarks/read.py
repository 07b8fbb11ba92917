"""Vocabulary and encoding: text to tokens, on two threads.

python benchmarks/read.py CORPUS [--work DIR] [--json FILE]
"""

from common import Bench, best_of, compared

from snm.text.encoding import encode_files, read_corpus


def main() -> None:
    bench = Bench(__doc__)
    path = bench.text("train")
    size = path.stat().st_size / 1e6
    _, vocabulary = read_corpus(path, threads=2)
    works = (lambda: read_corpus(path, threads=2)), (lambda: encode_files(path, vocabulary))
    learned, encoded = (size / seconds for seconds in best_of(3, *works))
    rows = [
        compared("vocabulary and encoding, 2 threads", learned, 60, ">= 1", "MB/s", learned / 60),
        compared("encoding with a given vocabulary, 1 thread", encoded, 60, "", "MB/s", encoded / 60),
    ]
    bench.report("read", rows)


if __name__ == "__main__":
    main()
