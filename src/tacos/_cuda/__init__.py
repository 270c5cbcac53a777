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
    from collections.abc import Iterator

    from numpy.typing import NDArray

__all__ = ["Buffer", "Gpu", "gpu", "obstacle"]

Argument: TypeAlias = "Buffer | np.uint32 | np.uint64"

_PROCESSORS, _COOPERATIVE = 16, 95  # attributes of a device, by the driver's numbers


class Buffer:
    """Memory on the device, freed when it is dropped."""

    __slots__ = ("_driver", "address", "nbytes")

    def __init__(self, driver: ctypes.CDLL, nbytes: int) -> None:
        """Allocate `nbytes` bytes."""
        self._driver, self.nbytes = driver, nbytes
        self.address = ctypes.c_uint64()
        _check(driver, driver.cuMemAlloc_v2(ctypes.byref(self.address), max(nbytes, 1)))

    def __del__(self) -> None:
        """Free the memory."""
        if self.address.value:
            self._driver.cuMemFree_v2(self.address)

    def fill(self, byte: int) -> Buffer:
        """Set every byte."""
        _check(self._driver, self._driver.cuMemsetD8_v2(self.address, byte, self.nbytes))
        return self

    def put(self, values: NDArray[Any]) -> Buffer:
        """Copy an array of the buffer's size into it."""
        array = np.ascontiguousarray(values)
        assert array.nbytes <= self.nbytes
        if array.nbytes:
            data = array.ctypes.data_as(ctypes.c_void_p)
            _check(self._driver, self._driver.cuMemcpyHtoD_v2(self.address, data, array.nbytes))
        return self

    def get(self, dtype: type[np.generic]) -> NDArray[Any]:
        """Copy the buffer into a new array."""
        array = np.empty(self.nbytes // np.dtype(dtype).itemsize, dtype)
        if array.nbytes:
            data = array.ctypes.data_as(ctypes.c_void_p)
            _check(self._driver, self._driver.cuMemcpyDtoH_v2(data, self.address, array.nbytes))
        return array


class Gpu:
    """The first GPU that the process sees.

    Attributes:
        name: As NVIDIA calls it.
        processors: Its multiprocessors.
    """

    def __init__(self, driver: ctypes.CDLL) -> None:
        """Open the device, in the context that other libraries of this process use."""
        self._driver = driver
        device = ctypes.c_int()
        _check(driver, driver.cuDeviceGet(ctypes.byref(device), 0))
        name = ctypes.create_string_buffer(128)
        _check(driver, driver.cuDeviceGetName(name, len(name), device))
        self.name = name.value.decode()
        self.processors = self._attribute(_PROCESSORS, device)
        self.cooperative = bool(self._attribute(_COOPERATIVE, device))
        self._context = ctypes.c_void_p()
        _check(driver, driver.cuDevicePrimaryCtxRetain(ctypes.byref(self._context), device))
        self._functions: dict[tuple[str, str], ctypes.c_void_p] = {}
        self._modules: dict[str, ctypes.c_void_p] = {}

    def _attribute(self, number: int, device: ctypes.c_int) -> int:
        value = ctypes.c_int()
        _check(self._driver, self._driver.cuDeviceGetAttribute(ctypes.byref(value), number, device))
        return value.value

    @contextmanager
    def current(self) -> Iterator[None]:
        """Make the device the calling thread's own; all other methods are called inside."""
        _check(self._driver, self._driver.cuCtxPushCurrent_v2(self._context))
        try:
            yield
        finally:
            self._driver.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))

    def free_bytes(self) -> int:
        """Memory that is free on the device."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        _check(self._driver, self._driver.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)))
        return free.value

    def empty(self, nbytes: int) -> Buffer:
        """Memory with any content."""
        return Buffer(self._driver, nbytes)

    def upload(self, values: NDArray[Any]) -> Buffer:
        """Memory with the content of an array."""
        return Buffer(self._driver, values.nbytes).put(values)

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
            kernel: The name of its file without an ending, and its own.
            blocks: Of the grid.
            threads: Of each block.
            arguments: Buffers and numbers, as its signature has them.
            together: Whether all blocks must be resident, because they wait for each other.
        """
        values = [
            one.address
            if isinstance(one, Buffer)
            else (ctypes.c_uint32 if isinstance(one, np.uint32) else ctypes.c_uint64)(int(one))
            for one in arguments
        ]
        pointers = (ctypes.c_void_p * len(values))(
            *(ctypes.cast(ctypes.byref(value), ctypes.c_void_p) for value in values)
        )
        function, shape = self._function(*kernel), (blocks, 1, 1, threads, 1, 1, 0, None, pointers)
        if together:
            _check(self._driver, self._driver.cuLaunchCooperativeKernel(function, *shape))
        else:
            _check(self._driver, self._driver.cuLaunchKernel(function, *shape, None))

    def resident_blocks(self, kernel: tuple[str, str], threads: int) -> int:
        """Blocks of a kernel that run at one time."""
        each = ctypes.c_int()
        code = self._driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(
            ctypes.byref(each), self._function(*kernel), threads, ctypes.c_size_t(0)
        )
        _check(self._driver, code)
        return each.value * self.processors

    def wait(self) -> None:
        """Wait for all that was started."""
        _check(self._driver, self._driver.cuCtxSynchronize())

    def _function(self, file: str, name: str) -> ctypes.c_void_p:
        if (file, name) not in self._functions:
            if file not in self._modules:
                self._modules[file] = self._load(file)
            function = ctypes.c_void_p()
            code = self._driver.cuModuleGetFunction(
                ctypes.byref(function), self._modules[file], name.encode()
            )
            _check(self._driver, code)
            self._functions[file, name] = function
        return self._functions[file, name]

    def _load(self, file: str) -> ctypes.c_void_p:
        from tacos._cuda import nvrtc

        module = ctypes.c_void_p()
        shipped = (nvrtc.KERNELS / f"{file}.ptx").read_bytes() + b"\0"
        if self._driver.cuModuleLoadData(ctypes.byref(module), shipped):
            # A driver older than the PTX; a compiler of its age may be installed.
            source = (nvrtc.KERNELS / f"{file}.cu").read_text()
            text = nvrtc.compile(source, name=f"{file}.cu")
            _check(self._driver, self._driver.cuModuleLoadData(ctypes.byref(module), text))
        return module


@cache
def _driver() -> ctypes.CDLL | str:
    """The driver's library, or why it is of no use."""
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
        TacosError: There is none, or it has no driver.
    """
    driver = _driver()
    if isinstance(driver, str):
        raise TacosError(f'{driver}; use device="cpu"')
    return Gpu(driver)


def _words(driver: ctypes.CDLL, code: int) -> str:
    text = ctypes.c_char_p()
    driver.cuGetErrorString(code, ctypes.byref(text))
    return (text.value or b"unknown error").decode()


def _check(driver: ctypes.CDLL, code: int) -> None:
    if code:
        raise TacosError(f"the GPU's driver reports error {code}: {_words(driver, code)}")
