"""Why the system refused something, in the words of a person instead of an exception's text."""

import errno

_WORDS = {
    errno.ECONNREFUSED: "no Potluck answers there",
    errno.ECONNRESET: "the connection was ended",
    errno.ECONNABORTED: "the connection was ended",
    errno.EPIPE: "the connection was ended",
    errno.EHOSTUNREACH: "no computer answers there",
    errno.EHOSTDOWN: "no computer answers there",
    errno.ENETUNREACH: "this computer's network does not lead there",
    errno.ENETDOWN: "this computer has no network",
    errno.ETIMEDOUT: "nothing answers there in time",
    errno.EADDRINUSE: "another program uses it",
    errno.EADDRNOTAVAIL: "this computer does not have that address",
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "what you may store on the disk is used up",
    errno.EFBIG: "the disk takes no file that large",
    errno.EROFS: "the disk can only be read",
    errno.EIO: "the disk does not work",
    errno.ENOENT: "it is not there",
    errno.ENODEV: "the disk is not there",
    errno.ENOTDIR: "a part of its path is no folder",
    errno.EISDIR: "it is a folder",
    errno.ENAMETOOLONG: "its name is too long",
    errno.EACCES: "you are not allowed to",
    errno.EPERM: "you are not allowed to",
    errno.EBUSY: "another program uses it",
    errno.EMFILE: "too many files are open",
    errno.ENFILE: "too many files are open",
    errno.ENOMEM: "the memory is full",
    errno.ENOEXEC: "a file of Potluck is damaged",
}


def reason(error: BaseException, otherwise: str = "the system refuses it") -> str:
    """Return why something failed, as the end of a sentence after a colon, without its full stop.

    Args:
        error: what was raised. Its own text is for logs: libraries write addresses, paths and
            numbers into it, in English.
        otherwise: the words for a cause that is not known here.
    """
    match error:
        case TimeoutError():
            return _WORDS[errno.ETIMEDOUT]
        case UnicodeDecodeError():
            return "it is no text in UTF-8"
        case ValueError() | RecursionError():
            return "it is damaged"
        case OSError():
            return _WORDS.get(error.errno or 0, otherwise)
        case _:
            return otherwise
