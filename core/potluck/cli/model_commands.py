"""The commands for models, and their help."""

from functools import partial

from potluck.cli.commands import Add, add_command
from potluck.cli.library_commands import add_key_commands, add_library_commands, add_upkeep_commands
from potluck.cli.options import add_bench, add_count, add_json, add_model, add_sampling
from potluck.cli.values import number


def add_model_commands(add: Add) -> None:
    """Add them."""
    _chat(add)
    _plan(add)
    _bench(add)
    _serve(add)
    _keys(add)
    _models(add)
    _demo(add)


def _chat(add: Add) -> None:
    chat = add(
        "chat",
        "chat:chat",
        "Ask a model. Without a prompt, talk with it; without --model, ask the model chosen last,\n"
        "which is at first the guide to Potluck.",
        'potluck chat "What is a worker?"',
        "potluck chat --model ~/models/Qwen3-8B --workers 2",
        'potluck chat --image photo.jpg "What is this?"',
        'git diff | potluck chat "Review this"     (what comes through a pipe follows the prompt)',
    )
    chat.add_argument("prompt", nargs="*", metavar="PROMPT", help="what to ask")
    chat.add_argument(
        "--image",
        action="append",
        default=[],
        metavar="FILE",
        help="a picture to ask about (PNG, JPEG, WebP or GIF); several times for several pictures",
    )
    add_model(chat)
    add_sampling(chat)
    add_json(chat)


def _plan(add: Add) -> None:
    plan = add(
        "plan",
        "plan:plan",
        "Say which computer would compute which layers, how fast, and why; loads nothing.",
        "potluck plan --model ~/models/Qwen3-8B",
        "potluck plan --layers desktop=20,laptop=12",
    )
    told = "also say when the answer begins to a prompt of so many tokens"
    add_count(plan, "--prompt", 1 << 20, told)
    add_model(plan)
    add_json(plan)


def _bench(add: Add) -> None:
    bench = add(
        "bench",
        "bench:bench",
        "Measure how fast a model runs on these computers, and how fast it could at best: the floor\n"
        "is what a token takes if nothing is done but reading the weights. Without --model, a shape\n"
        "with random weights, which every computer makes for itself: nothing is sent or downloaded.\n"
        "What was loaded before is unloaded for it, and loaded again by the next prompt.",
        "potluck bench",
        "potluck bench --shape llama-8b --scheme int4 --workers 2",
        "potluck bench --model ~/models/Qwen3-8B --layers desktop=20,laptop=16 --json",
    )
    add_model(bench, guide=False)
    add_bench(bench)
    add_json(bench)


def _serve(add: Add) -> None:
    serve = add(
        "serve",
        "serve:serve",
        "Load a model and answer other programs as OpenAI's API does, until Ctrl-C.",
        "potluck serve --model ~/models/Qwen3-8B --port 8000",
        "potluck serve --host 0.0.0.0 --tls     (for other computers too; first: potluck keys add NAME)",
    )
    add_model(serve)
    serve.add_argument("--host", default="127.0.0.1", help="where to listen (%(default)s)")
    serve.add_argument("--port", type=number(int, 0, 65535), default=8000, help="(%(default)s)")
    serve.add_argument("--key", help="one key for all programs, beside those of `potluck keys`")
    serve.add_argument(
        "--tls",
        action="store_true",
        help="encrypt; programs trust the file that `potluck keys authority` prints",
    )
    serve.add_argument(
        "--fetch-pictures",
        action="store_true",
        help="get pictures that programs name by an address on the Internet (never one of your home)",
    )
    serve.add_argument(
        "--origin", action="append", default=[], help="let web pages of this origin in; repeatable"
    )


def _keys(add: Add) -> None:
    keys = add(
        "keys",
        "keys:list_keys",
        "List the keys of programs that may use `potluck serve`. Each program has its own, which is\n"
        "printed once, and may be taken back at any time.",
        "potluck keys add open-webui",
        "potluck keys add prometheus --may metrics",
        "potluck keys revoke open-webui",
    )
    add_json(keys)
    add_key_commands(partial(add_command, keys.add_subparsers(metavar="", prog="potluck keys")))


def _models(add: Add) -> None:
    models = add(
        "models",
        "library:models",
        "List the models on this computer: used before, in the Hugging Face cache, or in the stores\n"
        "of Ollama and LM Studio. Or find and download others, or check the weights on its disk.",
        "potluck models",
        "potluck models search        (what Potluck recommends for your computers)",
        "potluck models pull Qwen/Qwen3-8B-GGUF",
        "potluck models verify        (are all weights what they were?)",
        "potluck models prune         (delete stored weights that nothing needs)",
        "potluck models limit 200     (send weights at 200 Mbit/s at most)",
        "potluck models limit --downloads 5     (download at 5 MB/s at most)",
    )
    add_json(models)
    more = models.add_subparsers(metavar="", prog="potluck models")
    add = partial(add_command, more)
    add_library_commands(add)
    add_upkeep_commands(add)


def _demo(add: Add) -> None:
    demo = add(
        "demo",
        "demo:demo",
        "Show everything on this one computer: three nodes with folders of their own find each\n"
        "other, pair, share out a model, and answer. Your own node and settings stay untouched.",
        "potluck demo",
        "potluck demo --model ~/models/Qwen3-0.6B --json",
        home=False,
    )
    demo.add_argument("prompt", nargs="*", metavar="PROMPT", help="what to ask")
    add_model(demo)
    add_sampling(demo)
    add_json(demo)
