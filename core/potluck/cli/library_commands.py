"""The commands below `potluck models` and `potluck keys`, and their help."""

from potluck.cli.commands import Add
from potluck.cli.options import add_json
from potluck.cli.values import number, rights
from potluck.ids import USUAL_RIGHTS


def add_library_commands(add: Add) -> None:
    """Add the commands that find, download and delete models."""
    listed = add(
        "list",
        "library:models",
        "List the models on this computer, with how they fit on your computers.",
        "potluck models list",
    )
    add_json(listed)

    search = add(
        "search",
        "library:search",
        "List models of the Hugging Face Hub, the most downloaded first. Without WORDS, list those\n"
        "that Potluck recommends, with how they fit on your computers; that asks nobody. With a whole\n"
        "name, say which variants it has, and how each fits.",
        "potluck models search",
        "potluck models search qwen3 gguf",
        "potluck models search Qwen/Qwen3-8B-GGUF",
    )
    search.add_argument("words", nargs="*", metavar="WORDS", help="of the model's name")
    add_json(search)

    pull = add(
        "pull",
        "library:pull",
        "Download a model from the Hugging Face Hub into its usual cache. Without VARIANT, the best\n"
        "one for your computers. Ctrl-C pauses; the same command goes on where it was.",
        "potluck models pull Qwen/Qwen3-8B-GGUF",
        "potluck models pull Qwen/Qwen3-8B-GGUF:Q8_0",
    )
    pull.add_argument("name", metavar="NAME[:VARIANT]", help="such as Qwen/Qwen3-8B-GGUF:Q4_K_M")
    pull.add_argument(
        "--token",
        action="store_true",
        help="ask for the token of your account at huggingface.co, for models with terms to accept",
    )
    add_json(pull)

    folder = add(
        "add",
        "library:add",
        "Search a folder, and the folders in it, for models from now on. Nothing is copied.",
        "potluck models add /mnt/models",
    )
    folder.add_argument("folder", metavar="FOLDER")
    add_json(folder)

    rm = add(
        "rm",
        "library:rm",
        "Delete a model from the Hugging Face cache. Models of other programs are never deleted.",
        "potluck models rm Qwen/Qwen3-8B-GGUF",
    )
    rm.add_argument("name", metavar="NAME", help="its name, or its path")
    rm.add_argument("--yes", action="store_true", help="do not ask")
    add_json(rm)


def add_upkeep_commands(add: Add) -> None:
    """Add the commands for the weights on the disk."""
    verify = add(
        "verify",
        "upkeep:verify",
        "Read all weights on this computer's disk and compare their digests. A damaged model is\n"
        "named; what is damaged of other computers' models is deleted, and sent again when needed.",
        "potluck models verify",
        "potluck models verify ~/models/Qwen3-8B",
    )
    verify.add_argument("model", nargs="?", metavar="MODEL", help="only this model (all)")
    add_json(verify)

    prune = add(
        "prune",
        "upkeep:prune",
        "Delete the stored weights that belong to no plan in force and were not made from a model\n"
        "on this computer. If they are needed again, they are sent again.",
        "potluck models prune",
        "potluck models prune --yes",
    )
    prune.add_argument("--yes", action="store_true", help="do not ask")
    add_json(prune)

    limit = add(
        "limit",
        "upkeep:limit",
        "Send weights to other computers at MBIT Mbit/s at most, from now on; 0: as fast as it goes.\n"
        "With --downloads, take so much of the Internet for models. Without both, print the limits.\n"
        "Tokens are never held back.",
        "potluck models limit 200",
        "potluck models limit --downloads 5",
    )
    limit.add_argument("mbit", nargs="?", metavar="MBIT", type=number(int, 0, 1_000_000))
    limit.add_argument(
        "--downloads",
        metavar="MB",
        type=number(int, 0, 1_000_000),
        help="MB/s at which models are downloaded at most; 0: as fast as it goes",
    )
    add_json(limit)

    idle = add(
        "idle",
        "upkeep:idle",
        "Unload a model that answered nobody for so many MINUTES, from now on; 0: never. The next prompt\n"
        "loads it again. Without MINUTES, print them. At first: 30.",
        "potluck models idle 60",
    )
    idle.add_argument("minutes", nargs="?", metavar="MINUTES", type=number(float, 0, 1_000_000))
    add_json(idle)


def add_key_commands(add: Add) -> None:
    """Add the commands for the keys of programs."""
    more = add(
        "add",
        "keys:add_key",
        "Make the key of a program, and print it. It is shown this once.",
        "potluck keys add open-webui",
        "potluck keys add notes --may ask",
    )
    more.add_argument("name", metavar="NAME", help="of the program")
    more.add_argument(
        "--may",
        type=rights,
        default=USUAL_RIGHTS,
        metavar="LIST",
        help="what it may do: ask the loaded model (ask), have others loaded (load), read /metrics"
        " (metrics); usually ask,load",
    )
    revoke = add(
        "revoke",
        "keys:revoke_key",
        "Take the key of a program back. It is refused at once.",
        "potluck keys revoke open-webui",
    )
    revoke.add_argument("name", metavar="NAME", help="of the program")
    add(
        "authority",
        "keys:authority",
        "Print the certificate of this computer's home, which programs on other computers trust when\n"
        "they use `potluck serve --tls`. It is no secret.",
        "potluck keys authority > home.pem",
        "SSL_CERT_FILE=home.pem python program.py",
    )
