#include "hooks.hpp"

#include <nanobind/stl/string.h>

#include <string>

namespace tacos::bindings {

using namespace nb::literals;

namespace {

Hooks* connected = nullptr;  // never freed: the interpreter outlives the module

}  // namespace

const Hooks& hooks() {
  if (connected == nullptr) throw std::runtime_error("import tacos before tacos._core is used");
  return *connected;
}

void bind_hooks(nb::module_& m) {
  m.def(
      "connect",
      [](nb::object find_npu, nb::object find_link, nb::object find_network, nb::object executed_ps,
         nb::object to_pandas, nb::object to_arrow, nb::object to_html, nb::object from_json,
         nb::object to_json) {
        if (connected == nullptr) connected = new Hooks;
        *connected = {std::move(find_npu),    std::move(find_link), std::move(find_network),
                      std::move(executed_ps), std::move(to_pandas), std::move(to_arrow),
                      std::move(to_html),     std::move(from_json), std::move(to_json)};
      },
      nb::kw_only(), "find_npu"_a, "find_link"_a, "find_network"_a, "executed_ps"_a, "to_pandas"_a,
      "to_arrow"_a, "to_html"_a, "from_json"_a, "to_json"_a,
      nb::sig("def connect(*, find_npu: collections.abc.Callable[[Topology, typing.Any], int], "
              "find_link: collections.abc.Callable[[Topology, typing.Any], int], "
              "find_network: collections.abc.Callable[[str], Topology], "
              "executed_ps: collections.abc.Callable[[Schedule], int | None], "
              "to_pandas: collections.abc.Callable[[typing.Any], typing.Any], "
              "to_arrow: collections.abc.Callable[[dict[str, typing.Any]], typing.Any], "
              "to_html: collections.abc.Callable[[typing.Any], str], "
              "from_json: collections.abc.Callable[[str], typing.Any], "
              "to_json: collections.abc.Callable[[typing.Any], str]) -> None"),
      "Connect the functions of the package that methods of these classes call.");
  m.def(
      "find_network", [](const std::string& text) { return hooks().find_network(text); }, "text"_a,
      nb::sig("def find_network(text: str) -> Topology"), "The topology of a spec or of a file.");
  m.def(
      "to_html", [](nb::handle item) { return hooks().to_html(item); }, "item"_a,
      nb::sig("def to_html(item: object) -> str"), "An object as HTML, for notebooks.");
}

}  // namespace tacos::bindings
