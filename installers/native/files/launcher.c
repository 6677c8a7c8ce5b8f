/* Contents/MacOS/Potluck: find the tree by where the app lies, and become its Python with the window.

   It is a program and no script, since macOS signs programs, and shows this one's name and icon. Python is
   started by a link in the same folder, so that the process stays one of this app for macOS; it finds its
   library by where the link leads. */
#include <limits.h>
#include <mach-o/dyld.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv) {
    char raw[PATH_MAX], here[PATH_MAX], python[PATH_MAX];
    uint32_t size = sizeof raw;
    if (_NSGetExecutablePath(raw, &size) != 0 || realpath(raw, here) == NULL) return 1;
    char *slash = strrchr(here, '/');
    if (slash == NULL) return 1;
    *slash = '\0';
    if (snprintf(python, sizeof python, "%s/python", here) >= (int)sizeof python) return 1;

    static const char *foreign[] = {"PYTHONHOME", "PYTHONPATH", "PYTHONSAFEPATH", "PYTHONSTARTUP",
                                    "PYTHONINSPECT", "PYTHONOPTIMIZE", "PYTHONUSERBASE"};
    for (size_t i = 0; i < sizeof foreign / sizeof *foreign; i++) unsetenv(foreign[i]);
    setenv("PYTHONNOUSERSITE", "1", 1);

    char **words = calloc((size_t)argc + 4, sizeof *words);
    if (words == NULL) return 1;
    int n = 0;
    words[n++] = python;
    words[n++] = "-P";
    words[n++] = "-m";
    words[n++] = "potluck_app";
    for (int i = 1; i < argc; i++)
        if (strncmp(argv[i], "-psn_", 5) != 0) words[n++] = argv[i]; /* from old Finders */
    execv(python, words);
    perror("Potluck");
    return 1;
}
