#!/bin/sh
# Remove Potluck of this user. --keep: models, chats and settings stay; --delete: nothing stays.
set -eu
target=$(dirname -- "$(readlink -f -- "$0")")
data=${XDG_DATA_HOME:-"$HOME/.local/share"}
say() { printf '%s\n' "$*"; }
if [ ! -e "$target/tree/potluck.json" ]; then
    say "There is no Potluck in $target. Nothing was removed."
    exit 1
fi
# It ends what runs, asks what stays, and says what stayed. If it fails, nothing else is removed.
"$target/tree/bin/potluck" uninstall "$@"

[ "$(readlink -- "$HOME/.local/bin/potluck" || true)" != "$target/tree/bin/potluck" ] || rm -f "$HOME/.local/bin/potluck"
entry=$data/applications/potluck.desktop
if grep -qsF "$target/tree/bin/potluck-window" "$entry"; then
    rm -f "$entry" "$data/mime/packages/potluck.xml"
    rm -f "$data"/icons/hicolor/*/apps/potluck.png
    ! command -v update-desktop-database >/dev/null || update-desktop-database -q "$data/applications" || true
    ! command -v update-mime-database >/dev/null || update-mime-database "$data/mime" >/dev/null 2>&1 || true
fi
rm -rf "$target/tree" "$target/versions" "$target/uninstall.sh"
rmdir "$target" 2>/dev/null || say "There are other files in $target, which stay."
say "Potluck is removed."
