#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/vector.h>

#include "columns.hpp"
#include "order/order.hpp"
#include "support/error.hpp"

namespace tacos::bindings {

using namespace nb::literals;

namespace {

// An OrderProblem and the arrays that its spans point into.
struct HeldProblem {
  std::vector<Column<std::int64_t>> kept;
  std::vector<Column<std::int32_t>> kept_links;
  OrderProblem problem;

  std::span<const std::int64_t> keep(const Array<std::int64_t>& array) {
    kept.push_back(adopt(array));
    return {kept.back().data(), kept.back().size()};
  }
};

template <typename T>
std::span<const T> span_of(const Array<T>& array) {
  return {array.data(), array.shape(0)};
}

std::shared_ptr<HeldProblem> make_problem(
    std::int32_t hosts, const Array<std::int32_t>& src, const Array<std::int32_t>& dst,
    const Array<std::int64_t>& term_begin, const Array<std::int32_t>& size_class,
    const Array<std::int64_t>& weight, const Array<std::uint8_t>& ring,
    const Array<std::uint8_t>& latency_counts, const Array<std::int64_t>& latency,
    const std::vector<Array<std::int64_t>>& bytes, const Array<std::int64_t>& route_begin,
    const Array<std::int32_t>& route_links, const std::vector<Array<std::int64_t>>& link_bytes) {
  auto held = std::make_shared<HeldProblem>();
  auto& problem = held->problem;
  const auto terms = size_class.shape(0);
  if (term_begin.shape(0) != terms + 1 || weight.shape(0) != terms || ring.shape(0) != terms ||
      latency_counts.shape(0) != terms || src.shape(0) != dst.shape(0)) {
    invalid("the columns of an order problem differ in length");
  }
  for (std::size_t k = 0; k < terms; ++k) {
    const auto begin = term_begin(k), end = term_begin(k + 1);
    if (begin < 0 || begin > end || end > static_cast<std::int64_t>(src.shape(0))) {
      invalid("the terms of an order problem are not in order");
    }
    OrderTerm term;
    term.src.assign(src.data() + begin, src.data() + end);
    term.dst.assign(dst.data() + begin, dst.data() + end);
    term.size_class = size_class(k);
    term.weight = weight(k);
    term.ring = ring(k) != 0;
    term.latency = latency_counts(k) != 0;
    problem.terms.push_back(std::move(term));
  }
  problem.hosts = hosts;
  problem.latency = held->keep(latency);
  for (const auto& row : bytes) problem.bytes.push_back(held->keep(row));
  problem.route_begin = held->keep(route_begin);
  held->kept_links.push_back(adopt(route_links));
  problem.route_links = {held->kept_links[0].data(), held->kept_links[0].size()};
  problem.links = link_bytes.empty() ? 0 : static_cast<std::int32_t>(link_bytes.front().shape(0));
  for (const auto& row : link_bytes) problem.link_bytes.push_back(held->keep(row));
  check(problem);
  return held;
}

}  // namespace

void bind_order(nb::module_& m) {
  nb::class_<HeldProblem>(
      m, "OrderProblem",
      "Messages between places, and their costs between hosts; see tacos.reorder.")
      .def(nb::new_(&make_problem), "hosts"_a, nb::kw_only(), "src"_a, "dst"_a, "term_begin"_a,
           "size_class"_a, "weight"_a, "ring"_a, "latency_counts"_a, "latency"_a, "bytes"_a,
           "route_begin"_a, "route_links"_a, "link_bytes"_a)
      .def(
          "cost",
          [](const HeldProblem& self, const Array<std::int32_t>& order) {
            return order_cost(self.problem, span_of(order));
          },
          "order"_a, "Cost of an order in picoseconds.")
      .def(
          "exact",
          [](const HeldProblem& self, const Array<std::int32_t>& start, bool fixed,
             std::int64_t nodes, const nb::object& progress) {
            const auto report = progress_to(progress);
            ExactOrder found;
            {
              const nb::gil_scoped_release release;
              found = exact_order(self.problem, span_of(start), fixed, nodes, report);
            }
            return nb::make_tuple(give(std::move(found.order)), found.cost, found.proven);
          },
          "start"_a, nb::kw_only(), "fixed"_a, "nodes"_a, "progress"_a = nb::none(),
          nb::sig(
              "def exact(self, start: numpy.typing.NDArray[numpy.int32], *, fixed: bool, nodes: "
              "int, progress: object | None = None) -> "
              "tuple[numpy.typing.NDArray[numpy.int32], int, bool]"),
          "The cheapest order, its cost, and whether that is proven.")
      .def(
          "place_search",
          [](const HeldProblem& self, const std::vector<Array<std::int64_t>>& pair,
             const Array<std::int32_t>& start, std::uint64_t seed, std::int64_t work,
             const nb::object& progress) {
            const auto report = progress_to(progress);
            std::vector<std::span<const std::int64_t>> rows;
            for (const auto& row : pair) rows.push_back(span_of(row));
            std::vector<std::int32_t> found;
            {
              const nb::gil_scoped_release release;
              found = place_search(self.problem, rows, span_of(start), seed, work, report);
            }
            return give(std::move(found));
          },
          "pair"_a, "start"_a, nb::kw_only(), "seed"_a, "work"_a, "progress"_a = nb::none(),
          nb::sig("def place_search(self, pair: "
                  "collections.abc.Sequence[numpy.typing.NDArray[numpy.int64]], "
                  "start: numpy.typing.NDArray[numpy.int32], *, seed: int, work: int, progress: "
                  "object | None = None) -> numpy.typing.NDArray[numpy.int32]"),
          "A cheaper order, by swaps of two hosts.");
  m.def(
      "tour_search",
      [](const Array<std::int64_t>& hop, const Array<std::int32_t>& start, std::uint64_t seed,
         std::int64_t work, const nb::object& progress) {
        const auto report = progress_to(progress);
        std::vector<std::int32_t> found;
        {
          const nb::gil_scoped_release release;
          found = tour_search(span_of(hop), static_cast<std::int32_t>(start.shape(0)),
                              span_of(start), seed, work, report);
        }
        return give(std::move(found));
      },
      "hop"_a, "start"_a, nb::kw_only(), "seed"_a, "work"_a, "progress"_a = nb::none(),
      nb::sig("def tour_search(hop: numpy.typing.NDArray[numpy.int64], start: "
              "numpy.typing.NDArray[numpy.int32], *, seed: int, work: int, progress: object | "
              "None = None) -> numpy.typing.NDArray[numpy.int32]"),
      "A short closed tour, by local search.");
  m.def(
      "one_tree_bound",
      [](const Array<std::int64_t>& hop, std::int32_t hosts, std::int64_t upper,
         std::int32_t rounds, const nb::object& progress) {
        const auto report = progress_to(progress);
        const nb::gil_scoped_release release;
        return one_tree_bound(span_of(hop), hosts, upper, rounds, report);
      },
      "hop"_a, "hosts"_a, nb::kw_only(), "upper"_a, "rounds"_a, "progress"_a = nb::none(),
      "A lower bound on the length of closed tours, by one-trees with prices.");
  m.def(
      "assignment_bound",
      [](const Array<std::int64_t>& hop, std::int32_t hosts, const nb::object& progress) {
        const auto report = progress_to(progress);
        const nb::gil_scoped_release release;
        return assignment_bound(span_of(hop), hosts, report);
      },
      "hop"_a, "hosts"_a, nb::kw_only(), "progress"_a = nb::none(),
      "A lower bound on the length of closed tours, by linear assignment.");
}

}  // namespace tacos::bindings
