/* What an AppImage starts with: this program, behind which a SquashFS image lies in the same file.

   It mounts nothing, so it needs no FUSE. The image's AppRun, a script of ours, is read and given to the shell; it has
   the program put into its user's folder by `--appimage-extract`, and opens what is there. So this program is
   needed for a moment only, and leaves no files behind.

   Other runtimes mount the image or unpack it, and start AppRun in there; it works with these, too. */
#define _GNU_SOURCE /* FNM_LEADING_DIR */
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <limits.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <squashfuse/squashfuse.h>
#include <zstd.h>

#define MOST_SCRIPT 65536 /* bytes of AppRun: it becomes an argument, and the kernel takes 131,072 */
#define PIECE (1 << 20)
#define TARGET "squashfs-root"

static const char HELP[] =
    "--appimage-extract [PATTERN]  unpack everything, or what fits, into " TARGET "\n"
    "--appimage-extract-and-run    what a start does anyway: nothing is mounted\n"
    "--appimage-offset             where the image begins, in bytes\n"
    "--appimage-version            what this program is\n";

static void fail(const char *what, const char *why) {
    fprintf(stderr, "Potluck's AppImage: %s: %s\n", what, why);
    exit(127);
}

/* squashfuse asks for this. The image is made with zstd alone; with squashfuse's own table, libraries for all other
   kinds would be linked in. */
static sqfs_err decompress(void *in, size_t size, void *out, size_t *room) {
    size_t done = ZSTD_decompress(out, *room, in, size);
    if (ZSTD_isError(done)) return SQFS_ERR;
    *room = done;
    return SQFS_OK;
}
sqfs_decompressor sqfs_decompressor_get(sqfs_compression_type type) {
    return type == ZSTD_COMPRESSION ? decompress : NULL;
}
void sqfs_compression_supported(sqfs_compression_type *types) { *types = ZSTD_COMPRESSION; }
char *sqfs_compression_name(sqfs_compression_type type) {
    return type == ZSTD_COMPRESSION ? "zstd" : NULL;
}

/* The image begins where the program ends: behind its table of sections. */
static size_t image_offset(int fd) {
    ElfW(Ehdr) head;
    if (pread(fd, &head, sizeof head, 0) != sizeof head) fail("its own file", strerror(errno));
    return head.e_shoff + (size_t)head.e_shentsize * head.e_shnum;
}

static void read_all(sqfs *fs, sqfs_inode *node, sqfs_off_t from, char *to, sqfs_off_t size) {
    sqfs_off_t done = size;
    if (sqfs_read_range(fs, node, from, &done, to) != SQFS_OK || done != size)
        fail("the image", "is damaged");
}

static void make_folder(const char *path, mode_t mode) {
    if (mkdir(path, mode | S_IRWXU) != 0 && errno != EEXIST) fail(path, strerror(errno));
}

/* Folders come before what is in them, but where a pattern leaves them out. */
static void make_parents(char *path) {
    char *last = strrchr(path, '/');
    *last = '\0';
    const bool is_there = access(path, F_OK) == 0;
    *last = '/';
    if (is_there) return;
    for (char *slash = strchr(path, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        make_folder(path, 0755);
        *slash = '/';
    }
}

static void write_file(sqfs *fs, sqfs_inode *node, const char *path) {
    static char piece[PIECE];
    const int flags = O_WRONLY | O_CREAT | O_EXCL, mode = node->base.mode & 0777;
    int fd = open(path, flags, mode);
    if (fd < 0 && errno == EEXIST && unlink(path) == 0) fd = open(path, flags, mode);
    if (fd < 0) fail(path, strerror(errno));
    const sqfs_off_t size = node->xtra.reg.file_size;
    for (sqfs_off_t from = 0; from < size;) {
        const sqfs_off_t length = size - from < PIECE ? size - from : PIECE;
        read_all(fs, node, from, piece, length);
        for (ssize_t done = 0; done < length;) {
            ssize_t now = write(fd, piece + done, length - done);
            if (now < 0 && errno != EINTR) fail(path, strerror(errno));
            done += now < 0 ? 0 : now;
        }
        from += length;
    }
    if (close(fd) != 0) fail(path, strerror(errno));
}

static void write_link(sqfs *fs, sqfs_inode *node, const char *path) {
    char leads[PATH_MAX];
    size_t room = sizeof leads;
    if (sqfs_readlink(fs, node, leads, &room) != SQFS_OK) fail("the image", "is damaged");
    if (unlink(path) != 0 && errno != ENOENT) fail(path, strerror(errno));
    if (symlink(leads, path) != 0) fail(path, strerror(errno));
}

static void extract(sqfs *fs, const char *pattern) {
    sqfs_traverse walk;
    sqfs_err error = sqfs_traverse_open(&walk, fs, sqfs_inode_root(fs));
    make_folder(TARGET, 0755);
    while (error == SQFS_OK && sqfs_traverse_next(&walk, &error)) {
        char path[PATH_MAX];
        sqfs_inode node;
        if (walk.dir_end) continue;
        if (pattern != NULL && fnmatch(pattern, walk.path, FNM_LEADING_DIR) != 0) continue;
        if (snprintf(path, sizeof path, TARGET "/%s", walk.path) >= (int)sizeof path)
            fail(walk.path, strerror(ENAMETOOLONG));
        if (sqfs_inode_get(fs, &node, sqfs_dentry_inode(&walk.entry)) != SQFS_OK)
            fail("the image", "is damaged");
        make_parents(path);
        if (S_ISDIR(node.base.mode)) make_folder(path, node.base.mode & 0777);
        else if (S_ISREG(node.base.mode)) write_file(fs, &node, path);
        else if (S_ISLNK(node.base.mode)) write_link(fs, &node, path);
        else fail(path, "is neither a file nor a folder nor a link");
        puts(path);
    }
    if (error != SQFS_OK) fail("the image", "is damaged");
    sqfs_traverse_close(&walk);
}

/* Become the shell with the image's AppRun, and the words of the command line. */
static void run(sqfs *fs, int count, char **words) {
    static char script[MOST_SCRIPT];
    bool found = false;
    sqfs_inode node;
    if (sqfs_inode_get(fs, &node, sqfs_inode_root(fs)) != SQFS_OK ||
        sqfs_lookup_path(fs, &node, "AppRun", &found) != SQFS_OK || !found ||
        node.xtra.reg.file_size >= MOST_SCRIPT)
        fail("the image", "is damaged");
    read_all(fs, &node, 0, script, node.xtra.reg.file_size);
    char **command = calloc((size_t)count + 5, sizeof *command);
    if (command == NULL) fail("the start", strerror(errno));
    char *start[] = {"sh", "-c", script, "AppRun"};
    memcpy(command, start, sizeof start);
    memcpy(command + 4, words, (size_t)count * sizeof *words);
    execv("/bin/sh", command);
    fail("/bin/sh", strerror(errno));
}

int main(int count, char **words) {
    char here[PATH_MAX];
    sqfs fs;
    if (realpath("/proc/self/exe", here) == NULL) fail("its own file", strerror(errno));
    int fd = open(here, O_RDONLY | O_CLOEXEC);
    if (fd < 0) fail(here, strerror(errno));
    const size_t offset = image_offset(fd);
    const char *option = count > 1 ? words[1] : "";
    if (strcmp(option, "--appimage-help") == 0) return fputs(HELP, stdout) < 0;
    if (strcmp(option, "--appimage-version") == 0) return puts("Potluck's own, for type 2") < 0;
    if (strcmp(option, "--appimage-offset") == 0) return printf("%zu\n", offset) < 0;
    if (sqfs_init(&fs, fd, offset) != SQFS_OK) fail(here, "was not downloaded whole; download it again");
    if (strcmp(option, "--appimage-extract") == 0) {
        extract(&fs, count > 2 ? words[2] : NULL);
        return 0;
    }
    const int dropped = strcmp(option, "--appimage-extract-and-run") == 0 ? 2 : 1;
    if (dropped == 1 && strncmp(option, "--appimage-", 11) == 0) fail(option, "there is no such option here");
    setenv("APPIMAGE", here, 1);
    setenv("ARGV0", words[0], 1);
    run(&fs, count > dropped ? count - dropped : 0, words + dropped);
}
