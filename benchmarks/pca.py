"""Incremental PCA of ten million rows in batches, compared with scikit-learn's IncrementalPCA on the same rows.

    python benchmarks/pca.py --out benchmarks/results/pca.json

Rows have 64 features: ten directions of falling spread, and noise. Each estimator has a process of its own with one
thread. It is given the pieces one after the other (scikit-learn's in parts of 320, as its own fit would), and says how
much memory it has taken at most so far. Making the rows is not timed.
Then 60,000 rows of 784 features in memory, as many as the lecture's digits, by every solver of both; the best of turns.
OPENBLAS_NUM_THREADS says with how many threads, else there is one for each core.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

FEATURES, RANK, PIECE = 64, 10, 20_000
REPORTED = (1_000_000, 2_000_000, 5_000_000, 10_000_000)


def piece(number: int, directions: Any) -> Any:
    """This many rows; each piece depends on its number alone."""
    import numpy as np

    r = np.random.default_rng(number)
    codes = r.standard_normal((PIECE, RANK), dtype=np.float32)
    noise = r.standard_normal((PIECE, FEATURES), dtype=np.float32)
    return codes @ directions + 0.1 * noise + 3.0


def directions() -> Any:
    """Ten orthogonal directions, each with less spread than the one before."""
    import numpy as np

    basis = np.linalg.qr(np.random.default_rng(0).standard_normal((FEATURES, RANK)))[0].T
    return (basis * 2.0 * 0.8 ** np.arange(RANK)[:, None]).astype(np.float32)


def memory() -> float:
    """The most memory that this process has had, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def stream(name: str, rows: int) -> dict[str, Any]:
    """One estimator over all rows."""
    import numpy as np
    from sklearn.decomposition import IncrementalPCA

    from heedful import PCA

    model: Any = PCA(RANK) if name == "heedful" else IncrementalPCA(RANK, copy=False)
    apiece = PIECE if name == "heedful" else 5 * FEATURES  # as many as its own fit would take
    true = directions()
    taken, peaks = 0.0, {}
    for number in range(rows // PIECE):
        given = piece(number, true)
        begin = time.perf_counter()
        for first in range(0, PIECE, apiece):
            model.partial_fit(given[first : first + apiece])
        taken += time.perf_counter() - begin
        seen = (number + 1) * PIECE
        if seen in REPORTED or seen == rows:
            peaks[f"{seen:,}"] = round(memory(), 1)
    begin = time.perf_counter()
    found = np.asarray(model.components_, dtype=np.float64)
    taken += time.perf_counter() - begin
    held = np.square(true @ found.T).sum(1) / np.square(true).sum(1)  # of each direction, how much the components hold
    return {
        "seconds": round(taken, 2),
        "rows a second": round(rows / taken),
        "most MB after rows": peaks,
        "least held of a true direction": round(float(held.min()), 6),
    }


def at_once(turns: int) -> list[dict[str, Any]]:
    """60,000 x 784 in memory, twenty components, by each solver of both."""
    import numpy as np
    from sklearn import decomposition

    from heedful import PCA

    r = np.random.default_rng(0)
    wide = r.standard_normal((60_000, 100), dtype=np.float32) * 0.97 ** np.arange(100, dtype=np.float32)
    rows = wide @ r.standard_normal((100, 784), dtype=np.float32) + 0.1 * r.standard_normal((60_000, 784), np.float32)
    doubles = rows.astype(np.float64)
    right = decomposition.PCA(20, svd_solver="full").fit(doubles).explained_variance_
    ways: dict[str, Any] = {
        "heedful auto": lambda: PCA(20),
        "heedful exact": lambda: PCA(20, solver="exact"),
        "heedful randomized": lambda: PCA(20, solver="randomized", random_state=0),
        "scikit-learn full": lambda: decomposition.PCA(20, svd_solver="full"),
        "scikit-learn covariance_eigh": lambda: decomposition.PCA(20, svd_solver="covariance_eigh"),
        "scikit-learn randomized": lambda: decomposition.PCA(20, svd_solver="randomized", random_state=0),
    }
    best: dict[tuple[str, str], float] = {}
    apart: dict[tuple[str, str], float] = {}
    for _ in range(turns):
        for kind, data in (("float32", rows), ("float64", doubles)):
            for name, make in ways.items():
                begin = time.perf_counter()
                found = make().fit(data)
                taken = time.perf_counter() - begin
                best[name, kind] = min(best.get((name, kind), taken), taken)
                apart[name, kind] = float(np.abs(found.explained_variance_ / right - 1).max())
    return [
        {"estimator": name, "data": kind, "seconds": round(taken, 3), "variance off by": apart[name, kind]}
        for (name, kind), taken in best.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--only", choices=("heedful", "scikit-learn"), help="one estimator over the rows, here")
    parser.add_argument("--out", type=Path, help="write the figures here too")
    given = parser.parse_args()
    if given.only:
        print(json.dumps(stream(given.only, given.rows)))
        return
    found: dict[str, Any] = {"rows": given.rows, "features": FEATURES, "components": RANK, "rows a piece": PIECE}
    for name in ("heedful", "scikit-learn"):
        command = [sys.executable, __file__, "--only", name, "--rows", str(given.rows)]
        alone = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
        }  # best for both on pieces this small
        done = subprocess.run(command, check=True, capture_output=True, text=True, env=alone)
        found[name] = json.loads(done.stdout)
        print(name, json.dumps(found[name]), flush=True)
    threads = os.environ.get("OPENBLAS_NUM_THREADS", str(os.cpu_count()))
    found["60,000 x 784, twenty components"] = {"threads": int(threads), "solvers": at_once(given.turns)}
    for row in found["60,000 x 784, twenty components"]["solvers"]:
        print(json.dumps(row))
    if given.out:
        given.out.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
