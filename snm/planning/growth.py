"""From the counts of texts of doubling lengths to those of a longer one."""

from __future__ import annotations

import numpy as np

from snm.counts.forecast import Forecast
from snm.disk import MOST_EVENT_BYTES


def continued(values: list[np.ndarray], doublings: float) -> np.ndarray:
    """Where growth leads to: `values` at doubling sizes of a text, continued for some more doublings.

    A value grows by 2^(1 - d) a doubling: d is 0 if everything new is different, and 1 if nothing is. By Heaps' law d
    is constant. In a text that repeats itself d grows, up to twofold a doubling: that of one that is drawn again and
    again from the same sentences. So its growth is measured.
    """
    logs = np.log2(np.maximum(values, 1e-9))
    deficits = np.clip(1 - np.diff(logs, axis=0), 1e-3, 1.0)
    growth = np.clip((deficits[-1] / deficits[0]) ** (1 / max(1, len(deficits) - 1)), 1.0, 2.0)
    deficit, exponent, left = deficits[-1], np.zeros_like(deficits[-1]), doublings
    while left > 0:
        deficit = np.minimum(deficit * growth, 1.0)
        exponent += min(left, 1.0) * (1 - deficit)
        left -= 1
    made: np.ndarray = np.where(values[-1] > 0, values[-1] * 2**exponent, 0.0)
    return made


def grown(forecasts: list[Forecast], words: list[int], ratio: float) -> Forecast:
    """The forecast of the whole text, `ratio` times as long as the last of texts of doubling lengths."""
    last, doublings = forecasts[-1], float(np.log2(ratio))
    rows = continued([f.rows_by_type for f in forecasts], doublings)
    links = continued([f.links_by_type for f in forecasts], doublings)
    features = round(last.features * ratio)
    links = np.minimum(np.maximum(links, rows), features)  # a tied type has several features of an event
    by_links = float(links.sum()) / max(1.0, last.links)
    of_feature = [f.events_bytes / max(1, f.features) for f in forecasts]
    events = of_feature[-1] + doublings * (of_feature[-1] - of_feature[0]) / (len(forecasts) - 1)
    return Forecast(
        tokens=round(last.tokens * ratio),
        words=round(float(continued([np.array([float(n)]) for n in words], doublings)[0])),
        features=features,
        rows_by_type=np.minimum(rows, links),
        links_by_type=links,
        codes_bytes=last.codes_bytes * by_links,
        chunks_bytes=last.chunks_bytes,
        events_bytes=min(events, float(MOST_EVENT_BYTES)) * features,
        pages_bytes=last.pages_bytes * by_links,
    )
