"""A GPU through NVIDIA's driver: memory, kernels and launches, with nothing to install.

The driver's library is on every machine with a GPU. Kernels are the ``.cu`` files beside this one, shipped as PTX,
which the driver translates once per process. A :class:`Gpu` uses the process's primary context, as torch does.
"""

from __future__ import annotations

import ctypes
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from tacos.errors import TacosError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

__all__ = ["DeviceArray", "Gpu", "gpu", "obstacle", "too_little_memory"]

_UNKNOWN_PTX = (218, 222)  # errors for PTX of a version that the driver does not know
_size = ctypes.c_size_t  # ctypes passes plain integers as 32 bits

Argument: TypeAlias = "DeviceArray | tuple[DeviceArray, ...] | np.uint32 | np.uint64"

_SHARE_OF_MEMORY = 0.95
_PIECE = 64 << 20
"""Bytes that one thread copies at a time."""
_COPYING_THREADS = 8
_PROCESSORS, _MAJOR, _MINOR, _COOPERATIVE = (
    16,
    75,
    76,
    95,
)  # attributes of a device, by the driver's numbers


class DeviceArray:
    """Memory on the device, freed when it is dropped."""

    __slots__ = ("_gpu", "address", "nbytes")

    def __init__(self, gpu: Gpu, nbytes: int) -> None:
        """Allocate `nbytes` bytes."""
        self._gpu, self.nbytes = gpu, nbytes
        self.address = ctypes.c_uint64()
        gpu.call("cuMemAlloc_v2", ctypes.byref(self.address), _size(max(nbytes, 1)))

    def __del__(self) -> None:
        """Free the memory."""
        if self.address.value:
            with self._gpu.current():
                self._gpu.call("cuMemFree_v2", self.address)

    def fill(self, byte: int) -> DeviceArray:
        """Set every byte."""
        if self.nbytes:
            self._gpu.call("cuMemsetD8_v2", self.address, ctypes.c_ubyte(byte), _size(self.nbytes))
        return self

    def put(self, values: NDArray[Any]) -> DeviceArray:
        """Copy an array of the buffer's size into it."""
        array = np.ascontiguousarray(values)
        assert array.nbytes <= self.nbytes

        def copy(begin: int, size: int) -> None:
            place = ctypes.c_uint64(self.address.value + begin)
            data = ctypes.c_void_p(array.ctypes.data + begin)
            self._gpu.call("cuMemcpyHtoD_v2", place, data, _size(size))

        self._in_pieces(array.nbytes, copy)
        return self

    def get(self, dtype: type[np.generic]) -> NDArray[Any]:
        """Copy the buffer into a new array."""
        array = np.empty(self.nbytes // np.dtype(dtype).itemsize, dtype)

        def copy(begin: int, size: int) -> None:
            place = ctypes.c_uint64(self.address.value + begin)
            data = ctypes.c_void_p(array.ctypes.data + begin)
            self._gpu.call("cuMemcpyDtoH_v2", data, place, _size(size))

        self._in_pieces(array.nbytes, copy)
        return array

    def _in_pieces(self, nbytes: int, copy: Callable[[int, int], None]) -> None:
        """Copy large buffers with several threads: allocating the host's pages takes longer than copying."""

        def one(begin: int) -> None:
            with self._gpu.current():
                copy(begin, min(_PIECE, nbytes - begin))

        if nbytes <= _PIECE:
            if nbytes:
                copy(0, nbytes)
            return
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(_COPYING_THREADS) as pool:
            list(pool.map(one, range(0, nbytes, _PIECE)))


class Gpu:
    """The first GPU that the process sees.

    Attributes:
        name: NVIDIA's name for it.
        processors: Number of multiprocessors.
        architecture: Its name for compilers, such as ``compute_90``.
        cooperative: Whether the blocks of a kernel can wait for each other.
    """

    def __init__(self, driver: ctypes.CDLL) -> None:
        """Open the device, in the context that other libraries of this process use."""
        self._driver = driver
        device = ctypes.c_int()
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        name = ctypes.create_string_buffer(128)
        self.call("cuDeviceGetName", name, len(name), device)
        self.name = name.value.decode()
        self.processors = self._attribute(_PROCESSORS, device)
        major, minor = (self._attribute(one, device) for one in (_MAJOR, _MINOR))
        self.architecture = f"compute_{major}{minor}"
        self.cooperative = bool(self._attribute(_COOPERATIVE, device))
        self._context = ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), device)
        self._functions: dict[tuple[str, str], ctypes.c_void_p] = {}
        self._modules: dict[str, ctypes.c_void_p] = {}

    def _attribute(self, number: int, device: ctypes.c_int) -> int:
        value = ctypes.c_int()
        self.call("cuDeviceGetAttribute", ctypes.byref(value), number, device)
        return value.value

    def call(self, function: str, *arguments: Any) -> None:
        """Call a function of the driver; raise a TacosError if it fails."""
        _check(self._driver, getattr(self._driver, function)(*arguments))

    @contextmanager
    def current(self) -> Iterator[None]:
        """Make the device current for the calling thread; all other methods must be called inside this block."""
        self.call("cuCtxPushCurrent_v2", self._context)
        try:
            yield
        finally:
            self._driver.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))

    def free_bytes(self) -> int:
        """Return the number of free bytes on the device."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value

    def empty(self, nbytes: int) -> DeviceArray:
        """Allocate memory without setting its content."""
        return DeviceArray(self, nbytes)

    def upload(self, values: NDArray[Any]) -> DeviceArray:
        """Allocate memory and copy an array into it."""
        return DeviceArray(self, values.nbytes).put(values)

    def launch(
        self,
        kernel: tuple[str, str],
        blocks: int,
        threads: int,
        *arguments: Argument,
        together: bool = False,
    ) -> None:
        """Start a kernel.

        Args:
            kernel: The name of its file without extension, and the name of the kernel.
            blocks: Number of blocks of the grid.
            threads: Number of threads per block.
            arguments: Buffers and numbers in the order of its signature; a tuple of buffers for a struct of pointers.
            together: Whether all blocks must be resident, because they wait for each other.
        """
        values = [_as_passed(one) for one in arguments]
        pointers = (ctypes.c_void_p * len(values))(
            *(ctypes.cast(ctypes.byref(value), ctypes.c_void_p) for value in values)
        )
        function, shape = self._function(*kernel), (blocks, 1, 1, threads, 1, 1, 0, None, pointers)
        if together:
            self.call("cuLaunchCooperativeKernel", function, *shape)
        else:
            self.call("cuLaunchKernel", function, *shape, None)

    def resident_blocks(self, kernel: tuple[str, str], threads: int) -> int:
        """Return how many blocks of a kernel can run at the same time."""
        each = ctypes.c_int()
        self.call(
            "cuOccupancyMaxActiveBlocksPerMultiprocessor",
            *(ctypes.byref(each), self._function(*kernel), threads, _size(0)),
        )
        return each.value * self.processors

    def wait(self) -> None:
        """Wait until all started work is done."""
        self.call("cuCtxSynchronize")

    def _function(self, file: str, name: str) -> ctypes.c_void_p:
        if (file, name) not in self._functions:
            if file not in self._modules:
                self._modules[file] = self._load(file)
            function = ctypes.c_void_p()
            self.call(
                "cuModuleGetFunction", ctypes.byref(function), self._modules[file], name.encode()
            )
            self._functions[file, name] = function
        return self._functions[file, name]

    def _load(self, file: str) -> ctypes.c_void_p:
        from tacos._cuda import nvrtc

        module = ctypes.c_void_p()
        shipped = (nvrtc.KERNELS / f"{file}.ptx").read_bytes() + b"\0"
        code = self._driver.cuModuleLoadData(ctypes.byref(module), shipped)
        if code not in _UNKNOWN_PTX:
            _check(self._driver, code)
        else:  # the driver is older than the PTX; a compiler of its age may be installed
            source = (nvrtc.KERNELS / f"{file}.cu").read_text()
            text = nvrtc.compile(source, name=f"{file}.cu", architecture=self.architecture)
            self.call("cuModuleLoadData", ctypes.byref(module), text)
        return module


@cache
def _driver() -> ctypes.CDLL | str:
    """Return the driver's library, or why it cannot be used."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "NVIDIA's driver (libcuda.so.1) is not installed"
    if code := driver.cuInit(0):
        return f"NVIDIA's driver finds no GPU: {_words(driver, code)}"
    count = ctypes.c_int()
    if driver.cuDeviceGetCount(ctypes.byref(count)) or not count.value:
        return "NVIDIA's driver finds no GPU"
    return driver


def obstacle() -> str:
    """Return what keeps this process from using a GPU; empty if nothing does.

    >>> isinstance(obstacle(), str)
    True
    """
    driver = _driver()
    return driver if isinstance(driver, str) else ""


@cache
def gpu() -> Gpu:
    """Return the first GPU.

    Raises:
        TacosError: There is no GPU, or it has no driver.
    """
    driver = _driver()
    if isinstance(driver, str):
        raise TacosError(f'{driver}; use device="cpu"')
    return Gpu(driver)


def too_little_memory(what: str, needed: float) -> str:
    """Return a sentence if the GPU has fewer bytes free than `needed`; empty if it has enough."""
    device = gpu()
    with device.current():
        free = device.free_bytes()
    if needed <= _SHARE_OF_MEMORY * free:
        return ""
    return (
        f"the {device.name} has {free / 2**30:.0f} GiB free; {what} needs {needed / 2**30:.0f} GiB"
    )


def _as_passed(
    argument: Argument,
) -> ctypes.c_uint32 | ctypes.c_uint64 | ctypes.Array[ctypes.c_uint64]:
    if isinstance(argument, DeviceArray):
        return argument.address
    if isinstance(argument, tuple):
        return (ctypes.c_uint64 * len(argument))(*(one.address.value for one in argument))
    return (ctypes.c_uint32 if argument.nbytes == 4 else ctypes.c_uint64)(int(argument))


def _words(driver: ctypes.CDLL, code: int) -> str:
    text = ctypes.c_char_p()
    driver.cuGetErrorString(code, ctypes.byref(text))
    return (text.value or b"unknown error").decode()


def _check(driver: ctypes.CDLL, code: int) -> None:
    if code:
        raise TacosError(f"the GPU's driver reports error {code}: {_words(driver, code)}")
