// Columns as a stream of Arrow record batches, through the Arrow C data interface: three structs that
// every Arrow library accepts, so no library is needed here. Nothing is copied.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "arrow.hpp"
#include "columns.hpp"

// The layout of these structs is Arrow's, https://arrow.apache.org/docs/format/CDataInterface.html
extern "C" {
struct ArrowSchema {
  const char* format;
  const char* name;
  const char* metadata;
  std::int64_t flags;
  std::int64_t n_children;
  ArrowSchema** children;
  ArrowSchema* dictionary;
  void (*release)(ArrowSchema*);
  void* private_data;
};
struct ArrowArray {
  std::int64_t length;
  std::int64_t null_count;
  std::int64_t offset;
  std::int64_t n_buffers;
  std::int64_t n_children;
  const void** buffers;
  ArrowArray** children;
  ArrowArray* dictionary;
  void (*release)(ArrowArray*);
  void* private_data;
};
struct ArrowArrayStream {
  int (*get_schema)(ArrowArrayStream*, ArrowSchema*);
  int (*get_next)(ArrowArrayStream*, ArrowArray*);
  const char* (*get_last_error)(ArrowArrayStream*);
  void (*release)(ArrowArrayStream*);
  void* private_data;
};
}

namespace tacos::bindings {
namespace {

constexpr std::int64_t kBatchRows = 1 << 20;
using AnyColumn = nb::ndarray<nb::ro, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

struct Table {
  std::vector<std::string> names;
  std::vector<const char*> formats;
  std::vector<AnyColumn> columns;
  std::int64_t rows = 0;

  ~Table() {
    const nb::gil_scoped_acquire
        gil;  // the thread that releases the last batch may not hold the GIL
    columns.clear();
  }
};
using SharedTable = std::shared_ptr<const Table>;

const char* format_of(const nb::dlpack::dtype& type) {
  const auto code = static_cast<nb::dlpack::dtype_code>(type.code);
  const bool is_signed = code == nb::dlpack::dtype_code::Int;
  if (is_signed || code == nb::dlpack::dtype_code::UInt) {
    if (type.bits == 8) return is_signed ? "c" : "C";
    if (type.bits == 16) return is_signed ? "s" : "S";
    if (type.bits == 32) return is_signed ? "i" : "I";
    if (type.bits == 64) return is_signed ? "l" : "L";
  }
  if (code == nb::dlpack::dtype_code::Float && type.bits == 64) return "g";
  throw nb::type_error("a column must be of whole numbers or float64");
}

// A schema or array of one column, or of the table: it keeps the table and its children alive.
template <typename Node>
struct Kept {
  SharedTable table;
  std::vector<Node> children;
  std::vector<Node*> pointers;
  std::vector<const void*> buffers;
};

template <typename Node>
void release_node(Node* node) {
  std::unique_ptr<Kept<Node>> kept(static_cast<Kept<Node>*>(node->private_data));
  for (Node* child : kept->pointers) {
    if (child->release != nullptr) child->release(child);  // a consumer may have moved it away
  }
  node->release = nullptr;
}

// Gives `node` ownership of `kept`, which holds its children.
template <typename Node>
void own(Node* node, std::unique_ptr<Kept<Node>> kept) {
  for (Node& child : kept->children) kept->pointers.push_back(&child);
  node->n_children = static_cast<std::int64_t>(kept->children.size());
  node->children = kept->pointers.data();
  node->release = &release_node<Node>;
  node->private_data = kept.release();
}

void fill_schema(const SharedTable& table, ArrowSchema* out) {
  auto whole = std::make_unique<Kept<ArrowSchema>>();
  whole->table = table;
  whole->children.resize(table->columns.size());
  for (std::size_t i = 0; i < table->columns.size(); ++i) {
    ArrowSchema& column = whole->children[i];
    column = {};
    column.format = table->formats[i];
    column.name = table->names[i].c_str();
    auto kept = std::make_unique<Kept<ArrowSchema>>();
    kept->table = table;
    own(&column, std::move(kept));
  }
  *out = {};
  out->format = "+s";
  out->name = "";
  own(out, std::move(whole));
}

void fill_batch(const SharedTable& table, std::int64_t begin, std::int64_t rows, ArrowArray* out) {
  auto whole = std::make_unique<Kept<ArrowArray>>();
  whole->table = table;
  whole->buffers = {nullptr};  // no validity: nothing is null
  whole->children.resize(table->columns.size());
  for (std::size_t i = 0; i < table->columns.size(); ++i) {
    ArrowArray& column = whole->children[i];
    column = {};
    column.length = rows;
    column.offset = begin;
    column.n_buffers = 2;
    auto kept = std::make_unique<Kept<ArrowArray>>();
    kept->table = table;
    kept->buffers = {nullptr, table->columns[i].data()};
    column.buffers = kept->buffers.data();
    own(&column, std::move(kept));
  }
  *out = {};
  out->length = rows;
  out->n_buffers = 1;
  out->buffers = whole->buffers.data();
  own(out, std::move(whole));
}

struct Position {
  SharedTable table;
  std::int64_t next = 0;
};

Position& position(ArrowArrayStream* stream) {
  return *static_cast<Position*>(stream->private_data);
}

void release_stream(ArrowArrayStream* stream) {
  delete static_cast<Position*>(stream->private_data);
  stream->release = nullptr;
}

template <typename Function>
int without_exceptions(Function&& function) {
  try {
    function();
    return 0;
  } catch (...) {
    return ENOMEM;  // no other failure is possible
  }
}

nb::capsule stream_of(std::vector<std::string> names, std::vector<AnyColumn> columns) {
  if (names.size() != columns.size()) throw std::invalid_argument("a name per column is needed");
  auto table = std::make_shared<Table>();
  for (const AnyColumn& column : columns) {
    table->formats.push_back(format_of(column.dtype()));
    if (column.shape(0) != columns[0].shape(0)) {
      throw std::invalid_argument("the columns differ in length");
    }
  }
  if (!columns.empty()) table->rows = static_cast<std::int64_t>(columns[0].shape(0));
  table->names = std::move(names);
  table->columns = std::move(columns);

  auto stream = std::make_unique<ArrowArrayStream>();
  stream->private_data = new Position{std::move(table), 0};
  stream->get_schema = [](ArrowArrayStream* self, ArrowSchema* out) {
    return without_exceptions([&] { fill_schema(position(self).table, out); });
  };
  stream->get_next = [](ArrowArrayStream* self, ArrowArray* out) {
    return without_exceptions([&] {
      auto& [table, next] = position(self);
      *out = {};  // released: the end
      if (next >= table->rows) return;
      const auto rows = std::min(kBatchRows, table->rows - next);
      fill_batch(table, next, rows, out);
      next += rows;
    });
  };
  stream->get_last_error = [](ArrowArrayStream*) -> const char* { return nullptr; };
  stream->release = &release_stream;
  return nb::capsule(stream.release(), "arrow_array_stream", [](void* pointer) noexcept {
    std::unique_ptr<ArrowArrayStream> unread(static_cast<ArrowArrayStream*>(pointer));
    if (unread->release != nullptr) unread->release(unread.get());
  });
}

}  // namespace

nb::capsule arrow_stream(const nb::dict& columns) {
  std::vector<std::string> names;
  std::vector<AnyColumn> arrays;
  for (const auto& [name, array] : columns) {
    names.push_back(nb::cast<std::string>(name));
    arrays.push_back(nb::cast<AnyColumn>(array));
  }
  return stream_of(std::move(names), std::move(arrays));
}

void bind_arrow(nb::module_& m) {
  m.def("arrow_stream", &stream_of, nb::arg("names"), nb::arg("columns"),
        nb::sig("def arrow_stream(names: collections.abc.Sequence[str], columns: "
                "collections.abc.Sequence[numpy.typing.NDArray[typing.Any]]) -> object"),
        "Columns as a stream of record batches, through the Arrow C data interface, not copied.");
}

}  // namespace tacos::bindings
