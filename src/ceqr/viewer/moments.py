"""Where to look in an episode: frames in which the agent knew least, and frames that surprised it most.

The *least certain* frames have the largest epistemic uncertainty of the greedy action. The *surprise* of a frame is how
far what came (the reward, and the discounted value of the next frame's greedy action) lies from the value of the action
that was taken, in units of the spread that the agent had predicted for it: the standard deviation of its quantiles, or
its doubt where it has no quantiles, or 1 for an agent that has neither. A spread below the episode's median counts as
the median, since next to nothing everything is large.
"""

from typing import NamedTuple

import numpy as np
from scipy.ndimage import maximum_filter1d, minimum_filter1d

from ceqr.viewer.record import Episode

MOST = 4  # moments of a kind in an episode
APART = 20  # an episode's share of frames that two moments of a kind are at least apart: a twentieth
PROMINENT = 0.05  # of an episode's range: by so much at least a moment is above what is near by


class Moment(NamedTuple):
    """A frame worth seeing."""

    kind: str  # "doubt" or "surprise"
    frame: int
    value: float


def surprise(episode: Episode, discount: float) -> np.ndarray:
    """[steps]; NaN for a last frame that was cut off, of which nobody knows what came."""
    beliefs, every = episode.beliefs, np.arange(len(episode))
    value = np.append(beliefs.mean[every, episode.greedy][1:], 0.0 if episode.end == "terminated" else np.nan)
    error = np.abs(episode.reward + discount * value - beliefs.mean[every, episode.action])
    if beliefs.quantiles is not None:
        spread = beliefs.quantiles[every, episode.action].std(-1)
    elif beliefs.epistemic is not None:
        spread = beliefs.epistemic[every, episode.action]
    else:
        return error
    spread = np.maximum(spread, np.median(spread))
    return error / np.where(spread > 0, spread, 1.0)


def moments(episode: Episode, discount: float) -> list[Moment]:
    """The moments of an episode, in the order of its frames."""
    found = []
    doubt = episode.of_greedy("epistemic")
    if doubt is not None:
        found += [Moment("doubt", frame, float(doubt[frame])) for frame in peaks(doubt)]
    surprised = surprise(episode, discount)
    found += [Moment("surprise", frame, float(surprised[frame])) for frame in peaks(surprised)]
    return sorted(found, key=lambda moment: (moment.frame, moment.kind))


def peaks(values: np.ndarray, most: int = MOST) -> list[int]:
    """The largest of the values that stand out, and that no other one near by exceeds; the largest first."""
    filled = np.where(np.isfinite(values), values, -np.inf)
    if not np.isfinite(filled).any():
        return []
    apart = max(5, len(filled) // APART)
    known = filled[np.isfinite(filled)]
    around = {"size": 2 * apart + 1, "mode": "nearest"}
    stands_out = filled - minimum_filter1d(np.maximum(filled, known.min()), **around) > PROMINENT * np.ptp(known)
    tops = np.flatnonzero((filled == maximum_filter1d(filled, **around)) & stands_out)
    found: list[int] = []
    for frame in sorted(tops, key=lambda i: -filled[i]):
        if len(found) < most and all(abs(frame - other) > apart for other in found):
            found.append(int(frame))
    return found
