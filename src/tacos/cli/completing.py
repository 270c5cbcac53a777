"""The scripts with which shells complete commands, options and values.

A script is written once and holds all that it offers, so that no Python runs when Tab is pressed. What an
argument takes is in its annotations: :class:`~tacos.cli.options.Values`, a ``Literal``, or a path.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from tacos.cli.options import Values

if TYPE_CHECKING:
    from cyclopts import App

__all__ = ["script"]


class Offer(NamedTuple):
    """What a shell offers for an argument."""

    words: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    """Extensions of files to offer; ``*`` for all files, ``/`` for directories alone."""
    separator: str = ""
    """What separates several values in one word."""


class Option(NamedTuple):
    """An option of a command; a flag takes nothing."""

    names: tuple[str, ...]
    help: str
    takes: Offer | None


class Command(NamedTuple):
    """A command, such as ``tacos train search``, and what may follow it."""

    name: str
    help: str
    options: tuple[Option, ...]
    positions: tuple[Offer, ...]
    rest: Offer | None
    """What any number of further arguments may be."""


def script(app: App, shell: str) -> str:
    """Return the script for a shell: bash, zsh or fish.

    >>> from tacos.cli import load
    >>> "complete -F _tacos tacos" in script(load(), "bash")
    True
    """
    found = list(_commands(app, "tacos"))
    return {"bash": _bash, "zsh": _zsh, "fish": _fish}[shell](found)


def _commands(app: App, name: str) -> Iterator[Command]:
    """Yield a command and those below it."""
    options: list[Option] = []
    positions: list[Offer] = []
    rest = None
    if app.default_command is not None:
        for argument in app.assemble_argument_collection():
            offer = _offer(argument)
            if argument.is_var_positional():
                rest = offer
            elif argument.index is not None:
                positions.append(offer)
            elif any(word.startswith("-") for word in argument.names):
                takes = None if argument.hint in (bool, bool | None) else offer
                options.append(
                    Option(
                        (*argument.names, *argument.negatives),
                        _first(argument.parameter.help),
                        takes,
                    )
                )
    options.append(Option(("--help",), "Show this help.", None))
    yield Command(name, _first(app.help), tuple(options), tuple(positions), rest)
    for word in app:
        if not word.startswith("-"):
            yield from _commands(app[word], f"{name} {word}")


def _offer(argument: Any) -> Offer:
    annotations = getattr(argument.field_info.annotation, "__metadata__", ())
    for values in annotations:
        if isinstance(values, Values):
            return Offer(tuple(values.words()), tuple(values.files()), values.separator)
    if choices := argument.get_choices(force=True):
        return Offer(tuple(choices))
    return Offer(files=("*",)) if "Path" in str(argument.hint) else Offer()


def _first(text: str | None) -> str:
    """Return the first sentence of a help text, without what shells would interpret."""
    line = " ".join((text or "").partition("\n\n")[0].split())
    line = line.partition(". ")[0].partition("; ")[0].removesuffix(".")
    return line.translate(str.maketrans("", "", "\\\"'`$[]"))


class _Tables(NamedTuple):
    """What the scripts of bash and zsh look up."""

    options: dict[str, list[tuple[str, str]]]
    """The names and help of the options of each command."""
    commands: dict[str, list[tuple[str, str]]]
    """The words and help of the commands below each command."""
    takes: dict[str, int]
    """The number of the offer for ``command --option``, ``command #position`` and ``command #*``."""
    offers: list[Offer]


def _tables(found: list[Command]) -> _Tables:
    offers: dict[Offer, int] = {}
    tables = _Tables({}, {}, {}, [])
    for command in found:
        tables.options[command.name] = [
            (name, option.help) for option in command.options for name in option.names
        ]
        above, _, word = command.name.rpartition(" ")
        if above:
            tables.commands.setdefault(above, []).append((word, command.help))
        taken = {
            name: option.takes
            for option in command.options
            for name in option.names
            if option.takes is not None
        }
        taken |= {f"#{place}": offer for place, offer in enumerate(command.positions)}
        if command.rest is not None:
            taken["#*"] = command.rest
        for name, offer in taken.items():
            tables.takes[f"{command.name} {name}"] = offers.setdefault(offer, len(offers))
    tables.offers.extend(offers)
    return tables


def _bash(found: list[Command]) -> str:
    tables = _tables(found)
    lines = ["# Completion of tacos, written by: tacos completion bash", ""]
    for name, table in (("options", tables.options), ("commands", tables.commands)):
        lines.append(f"declare -gA _tacos_{name}=(")
        lines += [f'  ["{key}"]="{" ".join(w for w, _ in words)}"' for key, words in table.items()]
        lines.append(")")
    lines.append("declare -gA _tacos_takes=(")
    lines += [f'  ["{key}"]={number}' for key, number in tables.takes.items()]
    lines.append(")")
    return "\n".join([*lines, *_offer_arrays(tables.offers), _BASH])


def _zsh(found: list[Command]) -> str:
    tables = _tables(found)
    lines = ["#compdef tacos", "# Completion of tacos, written by: tacos completion zsh", ""]
    for name, table in (("options", tables.options), ("commands", tables.commands)):
        lines.append(f"typeset -gA _tacos_{name}=(")
        for key, words in table.items():
            rows = "\n".join(f"{word}:{help.replace(':', ' -')}" for word, help in words)
            lines.append(f'  "{key}" "{rows}"')
        lines.append(")")
    lines.append("typeset -gA _tacos_takes=(")
    lines += [f'  "{key}" {number + 1}' for key, number in tables.takes.items()]
    lines.append(")")
    return "\n".join([*lines, *_offer_arrays(tables.offers), _ZSH])


def _offer_arrays(offers: list[Offer]) -> list[str]:
    """Return three arrays with the parts of the offers, in bash's and zsh's common syntax."""
    lines = []
    for name, column in (
        ("words", [" ".join(one.words) for one in offers]),
        ("files", [" ".join(one.files) for one in offers]),
        ("separators", [one.separator for one in offers]),
    ):
        lines += [f"_tacos_{name}=(", *(f'  "{text}"' for text in column), ")"]
    return lines


_BASH = r"""
_tacos() {
  # Words that bash splits at colons and equals signs are joined again.
  local -a words=()
  local piece glue= word verb=tacos option= count=0 i
  for piece in "${COMP_WORDS[@]:0:COMP_CWORD+1}"; do
    if [[ ${#words[@]} -gt 0 && ( -n $glue || $piece == [:=]* ) ]]; then
      words[-1]+=$piece
    else
      words+=("$piece")
    fi
    [[ $piece == *[:=] ]] && glue=1 || glue=
  done
  for ((i = 1; i < ${#words[@]} - 1; i++)); do
    word=${words[i]}
    if [[ -n $option ]]; then
      option=
    elif [[ $word == -* ]]; then
      [[ -n ${_tacos_takes["$verb $word"]} ]] && option=$word
    elif [[ $count == 0 && -n ${_tacos_options["$verb $word"]} ]]; then
      verb+=" $word"
    else
      ((count++))
    fi
  done
  local current=${words[-1]} before= separator= taken=
  COMPREPLY=()
  if [[ -n $option ]]; then
    taken=${_tacos_takes["$verb $option"]}
  elif [[ $current == -*=* ]]; then
    before=${current%%=*}=
    taken=${_tacos_takes["$verb ${current%%=*}"]}
  elif [[ $current == -* ]]; then
    _tacos_words_of "${_tacos_options[$verb]}"
  else
    [[ $count == 0 ]] && _tacos_words_of "${_tacos_commands[$verb]}"
    taken=${_tacos_takes["$verb #$count"]:-${_tacos_takes["$verb #*"]}}
  fi
  if [[ -n $taken ]]; then
    separator=${_tacos_separators[taken]}
    if [[ -n $separator && ${current#"$before"} == *"$separator"* ]]; then
      before=${current%"$separator"*}$separator
    fi
    _tacos_words_of "${_tacos_words[taken]}"
    _tacos_files_of "${_tacos_files[taken]}"
  fi
  # readline replaces what follows the last character that splits words.
  local kept=$current
  while [[ -n $kept && ! ( $kept == *[:=] && $COMP_WORDBREAKS == *"${kept: -1}"* ) ]]; do
    kept=${kept%?}
  done
  COMPREPLY=("${COMPREPLY[@]#"$kept"}")
  [[ ${#COMPREPLY[@]} == 1 && ${COMPREPLY[0]} == *[:=,/] ]] && compopt -o nospace 2> /dev/null
  return 0
}

_tacos_words_of() {
  local word
  local -a all
  read -ra all <<< "$1"
  for word in "${all[@]}"; do
    [[ $before$word == "$current"* ]] || continue
    [[ $before$word == "$current" && $word == *[:=] ]] || COMPREPLY+=("$before$word")
  done
}

_tacos_files_of() {
  [[ -z $1 ]] && return
  local name ending quoted
  local -a endings
  read -ra endings <<< "$1"
  while IFS= read -r name; do
    printf -v quoted %q "$name"
    if [[ -d $name ]]; then
      COMPREPLY+=("$before$quoted/")
      continue
    fi
    for ending in "${endings[@]}"; do
      [[ $ending == "*" || $name == *"$ending" ]] && COMPREPLY+=("$before$quoted") && break
    done
  done < <(compgen -f -- "${current#"$before"}")
}

complete -F _tacos tacos
"""

_ZSH = r"""
_tacos() {
  local word verb=tacos option= count=0 i
  for ((i = 2; i < CURRENT; i++)); do
    word=${words[i]}
    if [[ -n $option ]]; then
      option=
    elif [[ $word == -* ]]; then
      [[ -n ${_tacos_takes[$verb $word]} ]] && option=$word
    elif [[ $count == 0 && -n ${_tacos_options[$verb $word]} ]]; then
      verb+=" $word"
    else
      ((count++))
    fi
  done
  local current=$words[CURRENT]
  local -a rows
  if [[ -n $option ]]; then
    _tacos_offer ${_tacos_takes[$verb $option]}
  elif [[ $current == -*=* ]]; then
    compset -P '*='
    _tacos_offer ${_tacos_takes[$verb ${current%%=*}]}
  elif [[ $current == -* ]]; then
    rows=("${(f)_tacos_options[$verb]}")
    _describe -o option rows
  else
    if [[ $count == 0 && -n ${_tacos_commands[$verb]} ]]; then
      rows=("${(f)_tacos_commands[$verb]}")
      _describe command rows
    fi
    _tacos_offer ${_tacos_takes[$verb #$count]:-${_tacos_takes[$verb #*]}}
  fi
}

_tacos_offer() {
  [[ -z $1 ]] && return
  local -a all=(${=_tacos_words[$1]}) endings=(${=_tacos_files[$1]})
  local separator=${_tacos_separators[$1]}
  [[ -n $separator ]] && compset -P "*${(b)separator}"
  compadd -S '' -- ${(M)all:#*[:=,]}
  if [[ $separator == , ]]; then
    compadd -q -S , -- ${all:#*[:=,]}
  else
    compadd -- ${all:#*[:=,]}
  fi
  if [[ $endings == / ]]; then
    _files -/
  elif [[ $endings == '*' ]]; then
    _files
  elif (( $#endings )); then
    _files -g "*(${(j:|:)endings})"
  fi
}

if [[ $funcstack[1] == _tacos ]]; then
  _tacos "$@"
else
  compdef _tacos tacos
fi
"""


def _fish(found: list[Command]) -> str:
    tables = _tables(found)
    lines = ["# Completion of tacos, written by: tacos completion fish", ""]
    lines += [
        f"set -g __tacos_words_{n} {' '.join(map(_quoted, one.words))}"
        for n, one in enumerate(tables.offers)
    ]
    options = [key for key in tables.takes if "#" not in key]
    lines.append(f"set -g __tacos_takes {' '.join(map(_quoted, options))}")
    verbs = [command.name for command in found]
    lines.append(f"set -g __tacos_verbs {' '.join(map(_quoted, verbs))}")
    lines += [_FISH, "complete -c tacos -f"]
    for above, words in tables.commands.items():
        lines += [
            f"complete -c tacos -n '__tacos_at {_inner(above)} 0' -a {word} -d {_quoted(help)}"
            for word, help in words
        ]
    for command in found:
        at = f"__tacos_at {_inner(command.name)}"
        for option in command.options:
            names = " ".join(
                f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}"
                for name in option.names
            )
            line = f"complete -c tacos -n '{at}' {names} -d {_quoted(option.help)}"
            if option.takes is not None:
                line += f" -x -a {_offered(option.takes, tables.offers)}"
            lines.append(line)
        places = [(str(place), offer) for place, offer in enumerate(command.positions)]
        if command.rest is not None:
            places.append((f"{len(places)}+", command.rest))
        lines += [
            f"complete -c tacos -n '{at} {place}' -a {_offered(offer, tables.offers)}"
            for place, offer in places
            if offer != Offer()
        ]
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _inner(name: str) -> str:
    return f'"{name}"'


def _offered(offer: Offer, offers: list[Offer]) -> str:
    words = f"$__tacos_words_{offers.index(offer)}"
    if offer.separator:
        words = f"(__tacos_list {offer.separator!r} {words})".replace("'", '"')
    files = f" (__tacos_files {' '.join(offer.files)})".replace("*", '"*"') if offer.files else ""
    return f"'{words}{files}'"


_FISH = r"""
function __tacos_at --argument-names wanted place
    set -l tokens (commandline -opc)
    set -l verb tacos
    set -l count 0
    set -l skip 0
    for token in $tokens[2..]
        if test $skip = 1
            set skip 0
        else if string match -q -- '-*' $token
            contains -- "$verb $token" $__tacos_takes; and set skip 1
        else if test $count = 0; and contains -- "$verb $token" $__tacos_verbs
            set verb "$verb $token"
        else
            set count (math $count + 1)
        end
    end
    test "$verb" = "$wanted"; or return 1
    switch "$place"
        case ''
            return 0
        case '*+'
            test $count -ge (string trim -r -c + -- $place)
        case '*'
            test $count = $place
    end
end

function __tacos_list --description 'Offer words after the last separator of the current word'
    set -l current (string replace -r '^--[^=]*=' '' -- (commandline -ct))
    set -l before (string match -r '^.*'(string escape --style=regex -- $argv[1]) -- $current)
    or set before ''
    for word in $argv[2..]
        echo $before$word
    end
end

function __tacos_files --description 'Offer directories, and files with some extensions'
    set -l current (string replace -r '^--[^=]*=' '' -- (commandline -ct))
    for name in $current*
        if test -d $name
            echo $name/
            continue
        end
        for ending in $argv
            string match -q -- "*$ending" $name; and echo $name; and break
        end
    end
end
"""
