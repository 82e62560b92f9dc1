"""A table without a download: parcels, whose carrier and price depend on all of their columns together.

`note` is a text, `weight` a number (of one item, in kg), `size` a vector (the sides of the box, in cm), `country` a
class, and `items` an image: the handwritten number of items, from scikit-learn's digits. The rules are

    total = weight * items        bulky: a side is longer than 80 cm        urgent: the note says so
    carrier = express (urgent, and in Europe), air (urgent, and elsewhere), freight (bulky, or a total of over 12 kg),
              letter (a total of under 2 kg), parcel (all others)
    price = rate of the country * (3 + total) * (1.5 if urgent) + (10 if bulky)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from heedful.data.embedded import DIGITS, Embedded
from heedful.data.fields.rows import Rows
from heedful.data.formats.sources import SPLITS, Split

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

RATES = {"Austria": 1.0, "Brazil": 3.0, "Canada": 2.6, "France": 1.2, "Japan": 3.2, "Spain": 1.4}
EUROPE = ("Austria", "France", "Spain")
CONTENTS = ("books", "a lamp", "two chairs", "tea and cups", "spare parts", "winter clothes", "a small clock", "shoes")
URGENT = ("please hurry", "it is urgent", "needed by tomorrow", "as fast as you can", "no later than tomorrow")
CALM = ("no hurry", "it is not urgent", "take your time", "any day next week", "later is fine")
BULKY, HEAVY, LIGHT = 80, 12, 2  # cm, kg, kg
STREAM = 10  # of random numbers, which other uses of a seed do not have


class Parcels(Embedded):
    """Parcels: a note, weight, size, country and a handwritten number of items give the carrier and the price."""

    kind: Literal["parcels"] = "parcels"
    train: int = Field(6_000, ge=10, le=1_000_000, description="rows for training")
    valid: int = Field(500, ge=10, le=1_000_000, description="rows for validation")
    test: int = Field(1_000, ge=10, le=1_000_000, description="rows for the final score")
    seed: int = Field(0, ge=0, lt=2**63, description="random seed of the rows")

    def read(self, split: Split) -> Rows:
        """The rows of a split; the splits have different handwriting."""
        import numpy as np

        count = {"train": self.train, "valid": self.valid, "test": self.test}[split]
        shares = self._shares(split, count)
        images, digits = self._digits(split)
        chosen = (shares[0] * len(images)).astype(np.int64)  # (N,)
        items = digits[chosen]
        weight = np.round(0.2 * np.exp(shares[1] * np.log(20)), 2)  # from 0.2 to 4 kg
        size = np.round(10 + 80 * shares[2:5] ** 2).T  # (N, 3), from 10 to 90 cm
        country = np.array(list(RATES))[(shares[5] * len(RATES)).astype(np.int64)]
        urgent = shares[6] < 0.35
        first, second = (shares[7] * len(CONTENTS)).astype(np.int64), (shares[8] * len(CALM)).astype(np.int64)
        rows = []
        for n in range(count):
            total, bulky = float(weight[n] * items[n]), bool(size[n].max() > BULKY)
            near, rate = str(country[n]) in EUROPE, RATES[str(country[n])]
            hurry = (URGENT if urgent[n] else CALM)[second[n]]
            rows.append(
                {
                    "note": f"{CONTENTS[first[n]]}, {hurry}",
                    "weight": float(weight[n]),
                    "size": size[n].tolist(),
                    "country": str(country[n]),
                    "items": images[chosen[n]],
                    "carrier": carrier(bool(urgent[n]), near, bulky, total),
                    "price": round(rate * (3 + total) * (1.5 if urgent[n] else 1.0) + 10 * bulky, 2),
                }
            )
        return Rows.of(rows, (f"data.{split}[{number}]" for number in range(count)))

    def _shares(self, split: Split, count: int) -> NDArray[np.float64]:
        """Nine random numbers from 0 to 1 for each row (9, N)."""
        from heedful.data.order import random_bits

        bits = random_bits(self.seed, SPLITS.index(split), STREAM, 9 * count)
        shares: NDArray[np.float64] = ((bits >> 11) / 2**53).reshape(9, count)
        return shares

    def _digits(self, split: Split) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        """The images (M, 8, 8) of a split and their digits, without zeros."""
        import numpy as np
        from sklearn.datasets import load_digits

        from heedful.data.order import permutation

        ends = {"train": (0, 0.7), "valid": (0.7, 0.8), "test": (0.8, 1)}[split]
        first, last = (int(end * DIGITS) for end in ends)
        dataset = load_digits()
        rows = permutation(self.seed, 0, DIGITS)[first:last]
        rows = rows[dataset.target[rows] > 0]
        pixels = np.round(dataset.images[rows] / 16 * 255).astype(np.uint8)  # stored from 0 to 16
        return pixels, dataset.target[rows].astype(np.int64)


def carrier(urgent: bool, near: bool, bulky: bool, total: float) -> str:
    """The carrier of a parcel."""
    if urgent:
        return "express" if near else "air"
    if bulky or total > HEAVY:
        return "freight"
    return "letter" if total < LIGHT else "parcel"
