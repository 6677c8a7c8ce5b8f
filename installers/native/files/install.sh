#!/bin/sh
# Install Potluck for this user, without rights of an administrator and without the network.
# ./install.sh [FOLDER]: the folder for the program; ~/.local/opt/potluck if none is named.
set -eu
from=$(dirname -- "$(readlink -f -- "$0")")
target=${1:-"$HOME/.local/opt/potluck"}
case "$target" in /*) ;; *) target=$PWD/$target ;; esac
while [ "$target" != "${target%/}" ]; do target=${target%/}; done
[ -n "$target" ] || target=/
data=${XDG_DATA_HOME:-"$HOME/.local/share"}
say() { printf '%s\n' "$*"; }

if [ "$target" = "$data/potluck" ]; then
    say "$target is where Potluck keeps models and chats. Name another folder."
    exit 1
fi
case "$target" in
*"
"*)
    say "The name of a folder for programs must be one line. Name another folder."
    exit 1
    ;;
esac
if [ -e "$target" ] && [ ! -e "$target/tree/potluck.json" ]; then
    say "$target is there already and is no Potluck. Name another folder: ./install.sh FOLDER"
    exit 1
fi
version=$("$from/tree/bin/potluck" --version) && version=${version##* } || {
    say "Potluck does not start on this computer: it needs $(uname -m) and a newer system than this."
    exit 1
}
mkdir -p "$(dirname -- "$target")" "$HOME/.local/bin" "$data/applications" "$data/mime/packages"
rm -rf "$target.new" "$target.old"
# Potluck puts newer versions beside this one, and points `tree` at the one in use (core/potluck/update).
mkdir -p "$target.new/versions"
# Nothing in a tree changes, so that links to its files do, where the folders are on one disk.
cp -Rl "$from/tree" "$target.new/versions/$version" 2>/dev/null || {
    rm -rf "$target.new/versions/$version"
    cp -R "$from/tree" "$target.new/versions/$version"
}
cp "$from/uninstall.sh" "$target.new/"
ln -s "versions/$version" "$target.new/tree"
# What runs from the old folder has its files open until it ends.
[ ! -e "$target" ] || mv "$target" "$target.old"
mv "$target.new" "$target" || {
    [ ! -e "$target.old" ] || mv "$target.old" "$target"
    say "Potluck could not be moved to $target. What was there before is there again."
    exit 1
}
rm -rf "$target.old"

ln -sf "$target/tree/bin/potluck" "$HOME/.local/bin/potluck"
# Desktop Entry Specification 1.5: quotes around a word of Exec, escapes within, and those of strings around all.
# TryExec is a string without quotes. What sed puts in has escapes of its own.
strings() { printf '%s' "$1" | sed 's/\\/\\\\/g'; }
plain() { printf '%s' "$1" | sed 's/[\\&|]/\\&/g'; }
window=$target/tree/bin/potluck-window
word=\"$(printf '%s' "$window" | sed 's/["`$\\]/\\&/g; s/%/%%/g')\"
sed -e "s|^Exec={exec}|Exec=$(plain "$(strings "$word")")|" -e "s|^TryExec={exec}|TryExec=$(plain "$(strings "$window")")|" \
    "$from/potluck.desktop" >"$data/applications/potluck.desktop"
cp "$from/potluck-mime.xml" "$data/mime/packages/potluck.xml"
for size in 16 32 48 64 128 256 512; do
    folder=$data/icons/hicolor/${size}x$size/apps
    mkdir -p "$folder"
    cp "$from/tree/share/icons/potluck-$size.png" "$folder/potluck.png"
done
! command -v update-desktop-database >/dev/null || update-desktop-database -q "$data/applications" || true
! command -v update-mime-database >/dev/null || update-mime-database "$data/mime" >/dev/null 2>&1 || true

say "Potluck is installed in $target. It is among your programs, and its command is: potluck"
case ":$PATH:" in *":$HOME/.local/bin:"*) ;; *) say "For the command, add ~/.local/bin to PATH, or log in anew." ;; esac
say "To remove it: $target/uninstall.sh"
