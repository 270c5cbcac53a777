#include "order/order.hpp"

#include <string>

#include "order/cost.hpp"
#include "support/error.hpp"
#include "support/index.hpp"

namespace tacos {

void check(const OrderProblem& problem) {
  const std::size_t n = at(problem.hosts), pairs = n * n;
  if (problem.hosts < 1) invalid("an order needs at least one host");
  if (problem.latency.size() != pairs) invalid("latency must have a value for every pair of hosts");
  for (const auto& row : problem.bytes) {
    if (row.size() != pairs) invalid("bytes must have a value for every pair of hosts");
  }
  if (!problem.route_begin.empty()) {
    if (problem.route_begin.size() != pairs + 1)
      invalid("routes must have an entry for every pair of hosts");
    if (problem.link_bytes.size() != problem.bytes.size())
      invalid("link_bytes must have a row for every size");
    for (const auto& row : problem.link_bytes) {
      if (row.size() != at(problem.links)) invalid("link_bytes must have a value for every link");
    }
    for (std::size_t i = 0; i < pairs; ++i) {
      if (problem.route_begin[i] > problem.route_begin[i + 1]) invalid("routes must be in order");
    }
    if (problem.route_begin[0] != 0 ||
        problem.route_begin[pairs] != static_cast<std::int64_t>(problem.route_links.size())) {
      invalid("routes do not end where their links do");
    }
    for (const auto link : problem.route_links) {
      if (link < 0 || link >= problem.links) invalid("a route has link " + std::to_string(link));
    }
  }
  for (const auto& term : problem.terms) {
    if (term.src.empty() || term.src.size() != term.dst.size()) invalid("a term has no messages");
    if (at(term.size_class) >= problem.bytes.size()) invalid("a term has an unknown size");
    for (std::size_t i = 0; i < term.src.size(); ++i) {
      for (const auto place : {term.src[i], term.dst[i]}) {
        if (place < 0 || place >= problem.hosts)
          invalid("a message is at place " + std::to_string(place));
      }
      if (term.src[i] == term.dst[i]) invalid("a message leads to its own place");
    }
  }
}

namespace ordering {

void check_order(std::int32_t hosts, std::span<const std::int32_t> order) {
  std::vector<char> seen(at(hosts));
  bool right = order.size() == at(hosts);
  for (const auto host : order) {
    right = right && host >= 0 && host < hosts && !seen[at(host)];
    if (right) seen[at(host)] = 1;
  }
  if (!right) invalid("an order must have every host once");
}

void check_hops(std::span<const std::int64_t> hop, std::int32_t hosts) {
  if (hosts < 1 || hop.size() != at(hosts) * at(hosts))
    invalid("hop must have a value for every pair of hosts");
}

}  // namespace ordering

std::int64_t order_cost(const OrderProblem& problem, std::span<const std::int32_t> order) {
  check(problem);
  ordering::check_order(problem.hosts, order);
  return ordering::Evaluator(problem)(order);
}

}  // namespace tacos
