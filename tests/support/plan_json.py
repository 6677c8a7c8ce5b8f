"""The plan of the fake node, as commands print it with `--json`."""

from fake_backend import MODEL_ID, PLAN

PLAN_JSON = {
    "model_id": MODEL_ID,
    "scheme": "f32",
    "stages": [
        {
            "node": "here",
            "device": "cpu",
            "layers": [0, 2],
            "embedding": True,
            "head": False,
            "predicted_ms": 1.5,
            "share": 1.0,
            "group": "",
        },
        {
            "node": "there",
            "device": "cuda:0",
            "layers": [2, 6],
            "embedding": False,
            "head": True,
            "predicted_ms": 0.5,
            "share": 1.0,
            "group": "",
        },
    ],
    "predicted_tokens_per_s": 120.0,
    "first_token_ms": 900.0,
    "alone": {"here": 80.0, "there": None},
    "explanation": PLAN.explanation,
    "readers": [],
    "replicas": [],
}
