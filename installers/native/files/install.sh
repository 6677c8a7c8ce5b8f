#!/bin/sh
# Install Potluck for this user, without rights of an administrator and without the network.
# ./install.sh [FOLDER]: the folder for the program; ~/.local/opt/potluck if none is named.
set -eu
from=$(dirname -- "$(readlink -f -- "$0")")
target=${1:-"$HOME/.local/opt/potluck"}
case "$target" in /*) ;; *) target=$PWD/$target ;; esac
data=${XDG_DATA_HOME:-"$HOME/.local/share"}
say() { printf '%s\n' "$*"; }

if [ "$target" = "$data/potluck" ]; then
    say "$target is where Potluck keeps models and chats. Name another folder."
    exit 1
fi
if [ -e "$target" ] && [ ! -e "$target/tree/potluck.json" ]; then
    say "$target is there already and is no Potluck. Name another folder: ./install.sh FOLDER"
    exit 1
fi
"$from/tree/bin/potluck" --version >/dev/null || {
    say "Potluck does not start on this computer: it needs $(uname -m) and a newer system than this."
    exit 1
}
mkdir -p "$(dirname -- "$target")" "$HOME/.local/bin" "$data/applications" "$data/mime/packages"
rm -rf "$target.new" "$target.old"
mkdir "$target.new"
cp -R "$from/tree" "$from/uninstall.sh" "$target.new/"
# What runs from the old folder has its files open until it ends.
[ ! -e "$target" ] || mv "$target" "$target.old"
mv "$target.new" "$target"
rm -rf "$target.old"

ln -sf "$target/tree/bin/potluck" "$HOME/.local/bin/potluck"
quoted=$(printf '%s' "$target/tree/bin/potluck-window" | sed 's/[\\&|]/\\&/g')
sed "s|{exec}|$quoted|" "$from/potluck.desktop" >"$data/applications/potluck.desktop"
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
