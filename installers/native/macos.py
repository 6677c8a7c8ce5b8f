"""Potluck.app in a .dmg. The tree is in the app's resources; macOS gives permissions to the app.

    Potluck.app/Contents/Info.plist
    Potluck.app/Contents/MacOS/Potluck           a small program that becomes Python (`files/launcher.c`)
    Potluck.app/Contents/MacOS/python            a link to the tree's Python, so that macOS knows the app by it
    Potluck.app/Contents/Resources/potluck/      the tree
    Potluck.app/Contents/Resources/potluck.icns

Signing and notarisation need an account of Apple's; they are done if its names are in variables:

    POTLUCK_SIGN_AS           a certificate in the keychain, "Developer ID Application: …"; else ad hoc
    POTLUCK_NOTARY_PROFILE    of `xcrun notarytool store-credentials`; without it, nothing is notarised
"""

from __future__ import annotations

import os
import plistlib
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

from native import launchers, tree
from native.project import BuildError, package_name, version

IDENTIFIER = "org.potluck.Potluck"
_OLDEST = "14.0"  # what the wheels of the engine are made for (assets/engine/pylock.metal.toml); Qt needs 13
_MACH_O = {b"\xcf\xfa\xed\xfe", b"\xca\xfe\xba\xbe"}  # 64 bits; of several processors


def dmg(made: Path, out: Path) -> Path:
    """Write the .dmg: the app, and a link to the folder where it is dragged."""
    folder = out / "work" / "dmg"
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    app = bundle(made, folder / "Potluck.app")
    sign(app, os.environ)
    (folder / "Applications").symlink_to("/Applications")
    package = out / package_name("macos", ".dmg")
    command = ["hdiutil", "create", "-volname", "Potluck", "-srcfolder", str(folder)]
    _run([*command, "-format", "ULMO", "-ov", str(package)])
    notarise(package, os.environ)
    return package


def bundle(made: Path, app: Path) -> Path:
    """Make the app of a tree."""
    contents = app / "Contents"
    resources = contents / "Resources"
    resources.mkdir(parents=True)
    shutil.copytree(made, resources / "potluck", symlinks=True)
    tree.write_info(resources / "potluck", kind="macos")
    shutil.copy(made / "share" / "icons" / "potluck.icns", resources / "potluck.icns")
    (contents / "Info.plist").write_bytes(plistlib.dumps(info_plist()))
    programs = contents / "MacOS"
    programs.mkdir()
    (programs / "python").symlink_to("../Resources/potluck/python/bin/python3")
    source = launchers.FILES / "launcher.c"
    _run(
        [
            "cc",
            "-O2",
            f"-mmacosx-version-min={_OLDEST}",
            "-o",
            str(programs / "Potluck"),
            str(source),
        ]
    )
    return app


def info_plist() -> dict[str, object]:
    """Return what macOS reads of the app before it starts it."""
    return {
        "CFBundleIdentifier": IDENTIFIER,
        "CFBundleName": "Potluck",
        "CFBundleDisplayName": "Potluck",
        "CFBundleExecutable": "Potluck",
        "CFBundleIconFile": "potluck.icns",
        "CFBundlePackageType": "APPL",
        "CFBundleShortVersionString": version(),
        "CFBundleVersion": version(),
        "CFBundleLocalizations": ["en", *tree.languages()],
        "LSMinimumSystemVersion": _OLDEST,
        "LSApplicationCategoryType": "public.app-category.utilities",
        "NSHighResolutionCapable": True,
        # macOS 15 asks for it once, with this text; without these two, nothing is found.
        "NSLocalNetworkUsageDescription": "Potluck finds the other computers of your home, and"
        " computes answers together with those that you add.",
        "NSBonjourServices": ["_potluck._tcp"],
        "CFBundleURLTypes": [
            {"CFBundleURLName": f"{IDENTIFIER}.invitation", "CFBundleURLSchemes": ["potluck"]}
        ],
        # Alternate: Potluck is offered for such files, and takes them from no other program.
        "CFBundleDocumentTypes": [
            {
                "CFBundleTypeName": "Language model (GGUF)",
                "CFBundleTypeRole": "Viewer",
                "LSHandlerRank": "Alternate",
                "LSItemContentTypes": [f"{IDENTIFIER}.gguf"],
            }
        ],
        "UTImportedTypeDeclarations": [
            {
                "UTTypeIdentifier": f"{IDENTIFIER}.gguf",
                "UTTypeDescription": "Language model (GGUF)",
                "UTTypeConformsTo": ["public.data"],
                "UTTypeTagSpecification": {"public.filename-extension": ["gguf"]},
            }
        ],
    }


def entitlements() -> dict[str, bool]:
    """Return what the hardened runtime must allow, each for a reason.

    Kernels are generated: LLVM writes machine code into memory and runs it. The engine is installed
    later, and PyTorch's libraries have another signature or none.
    """
    return {
        "com.apple.security.cs.allow-jit": True,
        "com.apple.security.cs.allow-unsigned-executable-memory": True,
        "com.apple.security.cs.disable-library-validation": True,
    }


def mach_o(folder: Path) -> list[Path]:
    """Return the programs and libraries below a folder, the deepest first, as signing wants them."""
    found = [p for p in folder.rglob("*") if p.is_file() and not p.is_symlink() and _is_mach_o(p)]
    return sorted(found, key=lambda path: (-len(path.parts), path))


def signing(app: Path, entitled: Path, identity: str) -> list[list[str]]:
    """Return the commands that sign everything in an app, and the app last."""
    base = ["codesign", "--force", "--options", "runtime", "--sign", identity]
    base += ["--timestamp"] if identity != "-" else []
    entitling = ["--entitlements", str(entitled)]
    inner = [file for file in mach_o(app) if file.parent.name != "MacOS"]
    commands = [[*base, *(entitling if _is_program(file) else []), str(file)] for file in inner]
    return [*commands, [*base, *entitling, str(app)]]


def sign(app: Path, environ: Mapping[str, str]) -> None:
    """Sign an app: by the certificate that is named, else ad hoc, for this Mac alone."""
    entitled = app.parent / "entitlements.plist"
    entitled.write_bytes(plistlib.dumps(entitlements()))
    for command in signing(app, entitled, environ.get("POTLUCK_SIGN_AS", "-")):
        _run(command)
    entitled.unlink()
    _run(["codesign", "--verify", "--strict", "--deep", str(app)])


def notarise(package: Path, environ: Mapping[str, str]) -> None:
    """Have Apple look at the package, and staple its answer to it."""
    profile = environ.get("POTLUCK_NOTARY_PROFILE")
    if not profile:
        return
    submit = ["xcrun", "notarytool", "submit", str(package), "--wait"]
    _run([*submit, "--keychain-profile", profile])
    _run(["xcrun", "stapler", "staple", str(package)])


def _is_mach_o(file: Path) -> bool:
    with file.open("rb") as stream:
        return stream.read(4) in _MACH_O


def _is_program(file: Path) -> bool:
    """Whether it is started, and not loaded by another: entitlements are those of the process."""
    return file.parent.name == "bin"


def _run(command: Iterable[str]) -> None:
    words = list(command)
    try:
        ended = subprocess.run(words, capture_output=True, text=True)
    except FileNotFoundError:
        raise BuildError(f"{words[0]} is missing. Run `xcode-select --install`.") from None
    if ended.returncode:
        raise BuildError(f"{words[0]} failed:\n{ended.stderr.strip()}")
