"""The invented models of the pictures: those that are here, those of the Hub, and downloads."""

from msgspec.structs import replace

from potluck.api.values.hub import Download, Fit, HubModel, Speed, Variant
from potluck.api.values.schema import ModelEntry
from potluck.hub.sentences import gated, offline

GB = 10**9


def _fit(text: str, speed: tuple[float, float] | None, *, alone: bool, missing: int = 0) -> Fit:
    known = None if speed is None else Speed(low=speed[0], high=speed[1])
    return Fit(fits=not missing, text=text, speed=known, alone=alone, missing=missing)


QUICK = _fit("About 41 to 72 tokens/s on this computer.", (41, 72), alone=True)
GOOD = _fit("About 11 tokens/s on this computer. About 19 with Attic PC.", (11, 11), alone=True)
TOGETHER = _fit(
    "About 8 to 14 tokens/s on Living-room PC, MacBook Air and Old laptop. It does not fit on this"
    " computer alone.",
    (8, 14),
    alone=False,
)
LARGE = _fit(
    "Would fit with 8 GB more memory: close other programs on Gaming PC, or add a computer.",
    None,
    alone=False,
    missing=8 * GB,
)
QWEN3 = "Qwen/Qwen3-{}-GGUF"
MODELS_HERE = (
    ModelEntry(name="guide", path="/guide", nbytes=7_400_000, source="potluck", fit=QUICK),
    ModelEntry(
        name="Qwen/Qwen3-32B-GGUF/Qwen3-32B-Q4_K_M",
        path="/hub/Qwen3-32B",
        nbytes=19_800_000_000,
        current=True,
        format="gguf",
        source="hub",
        parameters=32_800_000_000,
        held={"MacBook Air": 5_600_000_000, "Old laptop": 3_700_000_000},
        fit=TOGETHER,
    ),
    ModelEntry(
        name="Qwen/Qwen3-8B-GGUF/Qwen3-8B-Q4_K_M",
        path="/hub/Qwen3-8B",
        nbytes=5_030_000_000,
        format="gguf",
        source="hub",
        parameters=8_200_000_000,
        can_be_deleted=True,
        fit=GOOD,
    ),
    ModelEntry(
        name="llama3.2:1b",
        path="/ollama/llama",
        nbytes=1_320_000_000,
        format="gguf",
        source="ollama",
        parameters=1_240_000_000,
        fit=QUICK,
    ),
    ModelEntry(
        name="Llama-3.3-70B-Instruct",
        path="~/models/llama-70b",
        nbytes=141_000_000_000,
        parameters=70_600_000_000,
        fit=LARGE,
    ),
)


def _hub_model(
    name: str, billions: float, gigabytes: float, license_name: str, about: str, fit: Fit
) -> HubModel:
    variants = (
        Variant(name="Q8_0", format="gguf", nbytes=int(1.8 * gigabytes * GB), fit=TOGETHER),
        Variant(name="Q4_K_M", format="gguf", nbytes=int(gigabytes * GB), fit=fit),
    )
    return HubModel(
        name=name,
        page=f"https://huggingface.co/{name}",
        about=about,
        parameters=int(billions * GB),
        license=license_name,
        variants=variants,
        best="Q4_K_M",
        fit=fit,
    )


RECOMMENDED = (
    _hub_model(
        QWEN3.format("4B"),
        4.0,
        2.5,
        "apache-2.0",
        "The best small one: it reasons well and knows many languages.",
        QUICK,
    ),
    _hub_model(
        QWEN3.format("8B"),
        8.2,
        5.03,
        "apache-2.0",
        "A good choice for one computer with 16 GB: reasons well, many languages.",
        GOOD,
    ),
    _hub_model(
        "bartowski/google_gemma-3-12b-it-GGUF",
        11.8,
        7.3,
        "gemma",
        "Writes well, in very many languages.",
        TOGETHER,
    ),
    _hub_model(
        QWEN3.format("14B"),
        14.8,
        9.0,
        "apache-2.0",
        "For harder questions, on one large or two usual computers.",
        TOGETHER,
    ),
    _hub_model(
        "bartowski/Llama-3.3-70B-Instruct-GGUF",
        70.6,
        42.5,
        "llama3.3",
        "One of the best that a home can run, on several computers together.",
        LARGE,
    ),
)
NOTHING = "The Hub has no model for “qwen3”."
OFFLINE = offline().message
DOWNLOADS = (
    Download(
        id="d1",
        model=QWEN3.format("14B"),
        variant="Q4_K_M",
        state="running",
        done=3_200_000_000,
        total=9_000_000_000,
        bytes_per_s=24_000_000,
        eta_s=242,
    ),
    Download(
        id="d2",
        model="bartowski/phi-4-GGUF",
        variant="Q4_K_M",
        state="paused",
        done=1_100_000_000,
        total=9_050_000_000,
    ),
)
QUEUE = (
    *DOWNLOADS,
    Download(
        id="d3",
        model="bartowski/google_gemma-3-12b-it-GGUF",
        variant="Q4_K_M",
        state="queued",
        done=0,
        total=7_300_000_000,
        place=2,
    ),
    Download(
        id="d4",
        model=QWEN3.format("4B"),
        variant="Q8_0",
        state="offline",
        done=900_000_000,
        total=4_280_000_000,
        message=offline().message,
    ),
    Download(
        id="d5",
        model="bartowski/Llama-3.3-70B-Instruct-GGUF",
        variant="Q4_K_M",
        state="failed",
        done=2_000_000_000,
        total=42_500_000_000,
        message="The download's process ended without a word. Try again.",
    ),
    Download(
        id="d6",
        model=QWEN3.format("8B"),
        variant="Q4_K_M",
        state="done",
        done=5_030_000_000,
        total=5_030_000_000,
        path="/hub/Qwen3-8B",
    ),
)
TERMS = gated(RECOMMENDED[2].name, has_token=False).message
UNKNOWN_ACCOUNT = (
    "The Hub does not know the token. Make a new one under huggingface.co/settings/tokens,"
    " and give it to Potluck."
)
NO_ROOM = (
    "Qwen/Qwen3-4B-GGUF (Q4_K_M) needs 2.5 GB more on the disk of /home, of which 1.1 GB are free: 2.4 GB"
    " are missing, with 1 GB left for others. Delete models or other files, and try again."
)
FOUND = tuple(
    replace(model, about="", downloads=count, license=model.license)
    for model, count in zip(RECOMMENDED[:3], (812_000, 1_430_000, 96_000), strict=True)
)
BROKEN = ModelEntry(
    name="Mamba-Codestral-7B",
    path="/models/mamba",
    nbytes=14_600_000_000,
    source="lmstudio",
    problem="Mamba-Codestral-7B is of the architecture Mamba2ForCausalLM, which Potluck cannot run yet.",
)
