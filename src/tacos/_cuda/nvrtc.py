"""Compile CUDA kernels with NVRTC, NVIDIA's compiler as a library.

The package ships its kernels as PTX, which the driver translates, so users do not need a compiler. This module renews the
PTX (``python -m tacos._cuda.nvrtc``) and compiles for drivers that do not accept it. NVRTC does not need a GPU.
"""

from __future__ import annotations

import ctypes
import hashlib
import sys
from importlib.util import find_spec
from pathlib import Path

from tacos.errors import TacosError

__all__ = ["KERNELS", "compile", "digest", "shipped"]

KERNELS = Path(__file__).parent
_OLDEST = "compute_70"
"""The oldest architecture that has `__match_any_sync` and scoped loads; newer GPUs run its PTX too."""


def digest(source: str) -> str:
    """Return a digest of a kernel file that does not depend on line endings, which git may change."""
    return hashlib.sha256(source.replace("\r\n", "\n").encode()).hexdigest()[:16]


def compile(source: str, *, name: str = "kernels.cu", architecture: str = _OLDEST) -> bytes:
    """Return the PTX of CUDA source text, for GPUs of an architecture and newer ones.

    Raises:
        TacosError: NVRTC is not installed, or the text does not compile.
    """
    nvrtc = _library()
    program = ctypes.c_void_p()
    _check(
        nvrtc,
        nvrtc.nvrtcCreateProgram(
            ctypes.byref(program), source.encode(), name.encode(), 0, None, None
        ),
    )
    try:
        options = [f"--gpu-architecture={architecture}".encode(), b"--std=c++20"]
        texts = (ctypes.c_char_p * len(options))(*options)
        if nvrtc.nvrtcCompileProgram(program, len(options), texts):
            raise TacosError(f"{name} does not compile: {_text(nvrtc, program, 'ProgramLog')}")
        return _text(nvrtc, program, "PTX").encode()
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def _text(nvrtc: ctypes.CDLL, program: ctypes.c_void_p, what: str) -> str:
    size = ctypes.c_size_t()
    _check(nvrtc, getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size)))
    text = ctypes.create_string_buffer(size.value)
    _check(nvrtc, getattr(nvrtc, f"nvrtcGet{what}")(program, text))
    return text.value.decode()


def _check(nvrtc: ctypes.CDLL, code: int) -> None:
    if code:
        nvrtc.nvrtcGetErrorString.restype = ctypes.c_char_p
        raise TacosError(f"NVRTC: {nvrtc.nvrtcGetErrorString(code).decode()}")


def _library() -> ctypes.CDLL:
    """Return NVRTC from NVIDIA's wheels, which torch and CuPy install, or from the system."""
    places: list[Path] = []
    spec = find_spec("nvidia")
    for folder in (spec.submodule_search_locations if spec else None) or []:
        places += sorted(Path(folder).glob("*/lib/libnvrtc.so.*"))
    for place in [*map(str, places), "libnvrtc.so.12", "libnvrtc.so.13", "libnvrtc.so"]:
        try:
            return ctypes.CDLL(place)
        except OSError:
            continue
    raise TacosError('NVRTC is not installed: pip install "tacos-ccl[cuda]"')


def shipped(file: Path) -> str:
    """Return what the package ships for a kernel file: its name and digest, and its PTX.

    Raises:
        TacosError: NVRTC is not installed, or the file does not compile.
    """
    source = file.read_text()
    text = compile(source, name=file.name).decode().rstrip("\0\n")
    return f"// {file.name} {digest(source)}\n{text}\n"


def _renew() -> None:
    for file in sorted(KERNELS.glob("*.cu")):
        file.with_suffix(".ptx").write_text(shipped(file))
        sys.stderr.write(f"wrote {file.stem}.ptx\n")


if __name__ == "__main__":
    _renew()
