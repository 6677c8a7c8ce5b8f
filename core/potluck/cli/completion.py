"""`completion`: how a shell completes `potluck`.

The script of a shell asks the hidden command `potluck complete` for the words that may follow. That one
reads the argument parser, so it knows each command and option, and no list has to be kept.
"""

import argparse
from collections.abc import Iterator

SHELLS = {
    "bash": """\
_potluck() {
  local IFS=$'\\n'
  COMPREPLY=($(potluck complete -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null | cut -f 1))
}
complete -o default -F _potluck potluck
""",
    "zsh": """\
#compdef potluck
_potluck() {
  local -a found
  found=("${(@f)$(potluck complete -- "${(@)words[2,CURRENT]}" 2>/dev/null | sed 's/:/\\\\:/g; s/\\t/:/')}")
  if [[ -n "$found" ]]; then _describe potluck found; else _files; fi
}
compdef _potluck potluck
""",
    "fish": """\
complete -c potluck -a '(potluck complete -- (commandline -opc)[2..-1] (commandline -ct) 2>/dev/null)'
""",
    "powershell": """\
Register-ArgumentCompleter -Native -CommandName potluck -ScriptBlock {
  param($word, $line, $cursor)
  $words = @($line.CommandElements | Select-Object -Skip 1 | ForEach-Object { "$_" })
  if (-not $word) { $words += '""' }
  potluck complete -- @words 2>$null | ForEach-Object {
    $text, $help = $_ -split "`t", 2
    if (-not $help) { $help = $text }
    [System.Management.Automation.CompletionResult]::new($text, $text, 'ParameterValue', $help)
  }
}
""",
}
USE = {
    "bash": 'Add to ~/.bashrc:  eval "$(potluck completion bash)"',
    "zsh": 'Add to ~/.zshrc, after compinit:  eval "$(potluck completion zsh)"',
    "fish": "Run:  potluck completion fish > ~/.config/fish/completions/potluck.fish",
    "powershell": "Add to $PROFILE:  potluck completion powershell | Out-String | Invoke-Expression",
}
HIDDEN = ("node", "complete")  # no person runs them


def completion(options: argparse.Namespace) -> int:
    """Print the script for a shell."""
    from potluck.cli.printing import put, say  # imported here: the parser of each command reads USE

    say(USE[options.shell])
    put(SHELLS[options.shell], end="")
    return 0


def complete(options: argparse.Namespace) -> int:
    """Print the words that may follow, one in a line, with what they mean behind a tab."""
    from potluck.cli.printing import put

    for word, meaning in candidates(options.parser, options.words):
        put(f"{word}\t{meaning}" if meaning else word)
    return 0


def candidates(parser: argparse.ArgumentParser, words: list[str]) -> Iterator[tuple[str, str]]:
    """Yield the words that may stand in place of the last one, and what each means.

    Args:
        parser: of the whole command line.
        words: the command line behind `potluck`; the last word is being typed, and may be empty.
    """
    *before, begun = words or [""]
    option: argparse.Action | None = None  # whose value is next
    for word in before:
        if option is not None:
            option = None
        elif word.startswith("-"):
            found = parser._option_string_actions.get(word)
            option = found if found is not None and found.nargs != 0 else None
        elif word in (commands := _commands(parser)):
            parser = commands[word]
    if option is not None:
        found = ((str(choice), "") for choice in option.choices or ())
    elif begun.startswith("-"):
        found = _options(parser)
    else:
        found = _words(parser)
    yield from ((word, meaning) for word, meaning in found if word.startswith(begun.strip("'\"")))


def _commands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return {name: each for name, each in action.choices.items() if name not in HIDDEN}
    return {}


def _options(parser: argparse.ArgumentParser) -> Iterator[tuple[str, str]]:
    for action in parser._actions:
        for name in action.option_strings:
            if name.startswith("--"):
                yield name, (action.help or "") % {"default": action.default}


def _words(parser: argparse.ArgumentParser) -> Iterator[tuple[str, str]]:
    """Yield the commands, and the values of arguments that have a list of them."""
    for name, command in _commands(parser).items():
        yield name, (command.description or "").partition("\n")[0]
    for action in parser._actions:
        if not action.option_strings and isinstance(action.choices, list | tuple):
            yield from ((str(choice), "") for choice in action.choices)
