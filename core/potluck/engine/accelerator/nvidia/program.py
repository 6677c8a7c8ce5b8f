"""Programs for an NVIDIA GPU: compiled from their source for the GPU at hand, loaded, and started.

The compiler is NVRTC, which torch's builds for CUDA bring along, so that nothing has to be installed. Both it and the
driver are called by their C functions: `torch.cuda._compile_kernel` needs the whole toolkit's folder.
"""

import ctypes
import sys
from collections.abc import Iterator, Sequence
from ctypes import byref, c_char_p, c_size_t, c_void_p
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

Size = tuple[int, int, int]


class GpuProgram:
    """A source, of which functions are compiled when they are first asked for."""

    def __init__(self, source: str, device: torch.device, options: Sequence[str] = ()) -> None:
        """Find the compiler and the driver; nothing is compiled yet.

        Raises:
            RuntimeError: there is no compiler, or no driver.
        """
        major, minor = torch.cuda.get_device_capability(device)
        self._source, self._device = source, device
        self._options = (f"--gpu-architecture=sm_{major}{minor}", "--std=c++17", *options)
        self._compiler, self._driver = compiler(), _driver()
        self._functions: dict[str, c_void_p] = {}

    def start(
        self,
        name: str,
        grid: Size,
        threads: int,
        *arguments: Tensor | int | float | None,
        shared: int = 0,
    ) -> None:
        """Start a function on the current stream.

        Args:
            name: of the function, as it is in the source, with the values of a template.
            grid: blocks of threads.
            threads: of a block.
            arguments: of the function: memory, i32 or f32; None is a null pointer.
            shared: bytes of shared memory, beside what the function declares.

        Raises:
            RuntimeError: it cannot be compiled or started.
        """
        function = self._functions.get(name)
        if function is None:
            function = self._functions[name] = self._load(name)
        values = [_argument(one) for one in arguments]
        pointers = (c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        stream = c_void_p(torch.cuda.current_stream(self._device).cuda_stream)
        self._check(
            self._driver.cuLaunchKernel(
                function, *grid, threads, 1, 1, shared, stream, pointers, None
            )
        )

    def _load(self, name: str) -> c_void_p:
        code, lowered = compiled(self._compiler, self._source, name, self._options)
        module, function = c_void_p(), c_void_p()
        with torch.cuda.device(self._device):
            torch.cuda.current_stream(self._device).synchronize()  # this thread has a context now
            self._check(self._driver.cuModuleLoadData(byref(module), code))
            self._check(self._driver.cuModuleGetFunction(byref(function), module, lowered))
        return function

    def _check(self, result: int) -> None:
        if result:
            words = c_char_p()
            self._driver.cuGetErrorString(result, byref(words))
            raise RuntimeError(f"CUDA: {(words.value or b'').decode() or result}")


class Long(int):
    """An argument of 64 bits."""


def _argument(value: Tensor | int | float | None) -> ctypes.c_void_p | ctypes._SimpleCData:  # pyright: ignore[reportPrivateUsage]
    match value:
        case None:
            return c_void_p()
        case Tensor():
            return c_void_p(value.data_ptr())
        case float():
            return ctypes.c_float(value)
        case Long():
            return ctypes.c_longlong(value)
        case _:
            return ctypes.c_int(value)


def compiled(
    library: ctypes.CDLL, source: str, name: str, options: Sequence[str]
) -> tuple[bytes, bytes]:
    """Compile one function of a source.

    Returns:
        The machine code, and what the function is called in it.

    Raises:
        RuntimeError: the compiler refuses it; the message has its words.
    """
    program = c_void_p()
    _succeed(
        library.nvrtcCreateProgram(byref(program), source.encode(), b"kernels.cu", 0, None, None)
    )
    try:
        expression = name.encode()
        _succeed(library.nvrtcAddNameExpression(program, expression))
        words = (c_char_p * len(options))(*(option.encode() for option in options))
        if library.nvrtcCompileProgram(program, len(options), words):
            raise RuntimeError(f"NVRTC refuses {name}: {_log(library, program)}")
        lowered, size = c_char_p(), c_size_t()
        _succeed(library.nvrtcGetLoweredName(program, expression, byref(lowered)))
        called = lowered.value or expression
        _succeed(library.nvrtcGetCUBINSize(program, byref(size)))
        code = ctypes.create_string_buffer(size.value)
        _succeed(library.nvrtcGetCUBIN(program, code))
        return code.raw, called
    finally:
        library.nvrtcDestroyProgram(byref(program))


def _log(library: ctypes.CDLL, program: c_void_p) -> str:
    size = c_size_t()
    library.nvrtcGetProgramLogSize(program, byref(size))
    log = ctypes.create_string_buffer(size.value)
    library.nvrtcGetProgramLog(program, log)
    return log.value.decode(errors="replace")


def _succeed(result: int) -> None:
    if result:
        raise RuntimeError(f"NVRTC: error {result}")


@cache
def compiler() -> ctypes.CDLL:
    """Load the NVRTC of this torch.

    Raises:
        RuntimeError: there is none.
    """
    for name in _compiler_names((torch.version.cuda or "").split(".")[0]):
        try:
            return load_compiler(name)
        except OSError:
            continue
    raise RuntimeError("this torch has no NVRTC")


def load_compiler(path: str) -> ctypes.CDLL:
    """Load an NVRTC, and first what it looks for by name alone when it compiles."""
    beside = Path(path).parent
    for builtins in (
        *beside.glob("libnvrtc-builtins.so.*"),
        *beside.glob("nvrtc-builtins64_*.dll"),
    ):
        ctypes.CDLL(str(builtins))
    return ctypes.CDLL(path)


def _compiler_names(major: str) -> Iterator[str]:
    """Where NVRTC may be: in NVIDIA's packages beside torch, in torch's own folder, or in the system's."""
    if not major:
        return
    packages = Path(torch.__file__).parent.parent
    if sys.platform == "win32":
        for folder in (packages / "torch" / "lib", packages / "nvidia" / f"cu{major}" / "bin"):
            yield from (str(path) for path in sorted(folder.glob(f"**/nvrtc64_{major}*_0.dll")))
        return
    for folder in (f"nvidia/cu{major}/lib", "nvidia/cuda_nvrtc/lib", "torch/lib"):
        yield from (str(path) for path in (packages / folder).glob(f"libnvrtc.so.{major}*"))
    yield f"libnvrtc.so.{major}"  # of the system


@cache
def _driver() -> ctypes.CDLL:
    try:
        return ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError as error:
        raise RuntimeError("there is no NVIDIA driver") from error
