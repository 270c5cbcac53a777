#include "columns.hpp"
#include "formats/crc32.hpp"

namespace tacos::bindings {

using namespace nb::literals;

void bind_crc32(nb::module_& m) {
  m.def(
      "crc32",
      [](const Array<std::uint8_t>& data, std::uint32_t before) {
        const nb::gil_scoped_release release;
        return crc32({data.data(), data.shape(0)}, before);
      },
      "data"_a.noconvert(), "before"_a = 0,
      nb::sig("def crc32(data: bytes | memoryview, before: int = 0) -> int"),
      "Return the CRC-32 of data, as zlib.crc32 does; `before` is the checksum of the preceding "
      "bytes.");
}

}  // namespace tacos::bindings
