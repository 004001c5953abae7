"""What people write: an endpoint that turns an image into a vector, by FastAPI, timm and Pillow.

    python benchmarks/plain_server.py --weights vit_small_patch16_224.safetensors --port 8001 [--threads 2] …

A plain `def` endpoint, which FastAPI runs in its pool of threads, in one process or in several.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from pathlib import Path

import torch
import uvicorn
from fastapi import Body, FastAPI
from PIL import Image

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
import peers


def create() -> FastAPI:
    """Load the model in each process; its settings come by the environment, as uvicorn's workers need it."""
    weights = Path(os.environ["PLAIN_WEIGHTS"])
    torch.set_num_threads(int(os.environ["PLAIN_THREADS"]))
    timm = peers.timm
    model = timm.create_model(weights.stem, img_size=224, num_classes=0, checkpoint_path=str(weights)).eval()
    transform = timm.data.create_transform(**timm.data.resolve_data_config({"img_size": 224}, model=model))
    app = FastAPI()

    @app.post("/embed")
    def embed(body: bytes = Body(media_type="application/octet-stream")) -> dict[str, list[float]]:
        image = transform(Image.open(io.BytesIO(body)).convert("RGB"))
        with torch.inference_mode():
            return {"vector": model(image[None])[0].tolist()}

    @app.get("/health/ready")
    def ready() -> dict[str, str]:
        return {"status": "ready"}

    return app


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--workers", type=int, default=1)
    options = parser.parse_args()
    os.environ |= {"PLAIN_WEIGHTS": str(options.weights), "PLAIN_THREADS": str(options.threads)}
    uvicorn.run(
        "plain_server:create",
        factory=True,
        host="127.0.0.1",
        port=options.port,
        workers=options.workers,
        log_level="warning",
    )


if __name__ == "__main__":
    main()
